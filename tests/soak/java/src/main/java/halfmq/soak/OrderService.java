package halfmq.soak;

import java.io.File;
import java.io.RandomAccessFile;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A typical existing service: {@code TransactionMQProducer}, a listener, its orders in PostgreSQL.
 *
 * <p>Arguments: name server, producer group, JDBC URL, directory of the round, its name, number of this life, seed,
 * transactions per second, system (for the history), topics separated by commas, grace period in seconds of some
 * transactions, and optionally "point:count" where it dies at once, without shutdown hooks.
 * The verdict is COMMIT, ROLLBACK, or UNKNOWN and then what a check finds.
 */
public final class OrderService implements TransactionListener {
    private static final int THREADS = 3;
    private static final String[] TAGS = {"", "red", "blue", "green"};

    private final Notes notes;
    private final Database database;
    private final String group;
    private final MappedByteBuffer counter;
    private final String deathPoint;
    private final AtomicInteger deathCount;
    private final AtomicInteger operations = new AtomicInteger();
    /** Pending requests: transaction id to the name of its request in the history. */
    private final Map<String, String> asked = new ConcurrentHashMap<>();

    private OrderService(String[] args) throws Exception {
        group = args[1];
        database = new Database(args[2]);
        notes = new Notes(args[3] + "/history", args[4] + "." + args[5], args[8]);
        try (RandomAccessFile file = new RandomAccessFile(args[3] + "/" + args[4] + ".count", "rw")) {
            counter = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 8);
        }
        counter.order(ByteOrder.LITTLE_ENDIAN);
        String[] death = (args.length > 11 ? args[11] : ":0").split(":");
        deathPoint = death[0];
        deathCount = new AtomicInteger(Integer.parseInt(death[1]));
    }

    public static void main(String[] args) throws Exception {
        OrderService service = new OrderService(args);
        TransactionMQProducer producer = new TransactionMQProducer(service.group);
        producer.setNamesrvAddr(args[0]);
        producer.setInstanceName(args[4] + "." + args[5]);
        producer.setPollNameServerInterval(1000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setTransactionListener(service);
        producer.setExecutorService(new ThreadPoolExecutor(2, 2, 1, TimeUnit.MINUTES, new ArrayBlockingQueue<>(2000)));
        producer.start();
        File quiet = new File(args[3], "quiet");
        File late = new File(args[3], "late");
        double pauseMs = 1000.0 * THREADS / Double.parseDouble(args[7]);
        for (int thread = 0; thread < THREADS; thread++) {
            Random rng = new Random((args[6] + "/" + args[4] + "/" + args[5] + "/" + thread).hashCode());
            new Thread(() -> service.work(producer, rng, args[9].split(","), args[10], quiet, late, pauseMs)).start();
        }
        // Runs until SIGTERM, which ends a JVM by default.
    }

    private void work(
        TransactionMQProducer producer, Random rng, String[] topics, String patient, File quiet, File late, double pauseMs) {
        while (true) {
            try {
                if (quiet.exists()) {
                    Thread.sleep(100);
                    continue;
                }
                long started = System.nanoTime();
                String immunity = rng.nextInt(5) > 0 ? null : late.exists() ? "1" : patient;
                place(producer, rng, topics[rng.nextInt(topics.length)], immunity);
                long waitMs = (long) ((pauseMs - (System.nanoTime() - started) / 1e6) * (0.6 + 0.8 * rng.nextDouble()));
                if (waitMs > 0) {
                    Thread.sleep(waitMs);
                }
            } catch (InterruptedException end) {
                return;
            }
        }
    }

    private void place(TransactionMQProducer producer, Random rng, String topic, String immunity) throws InterruptedException {
        byte[] body = new byte[40 + rng.nextInt(860)];
        rng.nextBytes(body);
        Message message = new Message(topic, body);
        if (!tagOf(crc(body)).isEmpty()) {
            message.setTags(tagOf(crc(body)));
        }
        MessageClientIDSetter.setUniqID(message);
        String id = MessageClientIDSetter.getUniqID(message);
        message.setKeys(id);
        if (immunity != null) {
            message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", immunity);
        }
        String operation = ask(id, topic, body);
        try {
            producer.sendMessageInTransaction(message, rng.nextDouble());
            synchronized (counter) {
                counter.putLong(0, counter.getLong(0) + 1);
            }
        } catch (Exception error) {
            if (error instanceof InterruptedException) {
                throw (InterruptedException) error;
            }
            if (asked.remove(id) != null) {
                // The client tried several times, and does not report whether each attempt was refused.
                notes.write("answered", "op", operation, "outcome", "unknown");
            }
            Thread.sleep(200);
        }
    }

    private String ask(String id, String topic, byte[] body) {
        String operation = "h" + operations.incrementAndGet();
        asked.put(id, operation);
        notes.write("half", "op", operation, "group", group, "tx", id, "message", id, "topic", topic, "crc", crc(body));
        return operation;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        String id = message.getTransactionId();
        notes.write("answered", "op", asked.remove(id), "outcome", "ok");
        double fate = (Double) argument;
        dieAt("before-local-commit");
        if (fate < 0.12) {
            return end(id, LocalTransactionState.ROLLBACK_MESSAGE, "application");
        }
        if (fate < 0.19) {
            return LocalTransactionState.UNKNOW; // nothing was written: a check finds out
        }
        try {
            long crc = crc(message.getBody());
            database.place(id, group, message.getTopic(), crc, tagOf(crc), () -> dieAt("in-local-transaction"));
        } catch (Exception error) {
            System.err.println(id + ": " + error);
            return LocalTransactionState.UNKNOW; // it may have been written
        }
        dieAt("after-local-commit");
        if (fate < 0.33) {
            return LocalTransactionState.UNKNOW;
        }
        return end(id, LocalTransactionState.COMMIT_MESSAGE, "application");
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        String id = message.getTransactionId();
        String times = message.getProperty("TRANSACTION_CHECK_TIMES");
        notes.write("check", "group", group, "tx", id, "times", times == null ? 0 : Integer.parseInt(times));
        dieAt("in-check");
        char outcome = 0;
        try {
            outcome = database.fence(id);
        } catch (Exception error) {
            System.err.println("check of " + id + ": " + error);
        }
        if (outcome == 0) {
            notes.write("no_verdict", "group", group, "tx", id);
            return LocalTransactionState.UNKNOW;
        }
        LocalTransactionState said = outcome == 'C' ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        end(id, said, "check");
        dieAt("check-decided");
        return said;
    }

    /** The client sends it one-way when this returns, so there is no response. */
    private LocalTransactionState end(String id, LocalTransactionState said, String decidedBy) {
        String verdict = said == LocalTransactionState.COMMIT_MESSAGE ? "COMMITTED" : "ROLLED_BACK";
        notes.write("end", "op", "e" + operations.incrementAndGet(), "group", group, "tx", id, "verdict", verdict, "decided_by", decidedBy);
        return said;
    }

    private void dieAt(String point) {
        if (point.equals(deathPoint) && deathCount.decrementAndGet() == 0) {
            notes.write("fault", "what", "kill", "whom", "self", "detail", point);
            Runtime.getRuntime().halt(137);
        }
    }

    /** As in tests/soak/plan.py. */
    private static String tagOf(long crc) {
        return TAGS[(int) (crc % TAGS.length)];
    }

    private static long crc(byte[] body) {
        CRC32 sum = new CRC32();
        sum.update(body);
        return sum.getValue() & 0x7FFFFFFF;
    }
}
