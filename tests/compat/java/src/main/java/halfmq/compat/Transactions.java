package halfmq.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactions that commit, roll back, or answer UNKNOWN until a check asks; two consumers of one group listen.
 *
 * <p>Of ten transactions six commit, two roll back, one is committed and one rolled back by a check. Of the ones that
 * wait for a check every fifth answers UNKNOWN to the first one too.
 */
final class Transactions implements Program {
    private static final int COUNT = Integer.getInteger("transactions", 1000);
    private static final int THREADS = 8;
    private static final int SETTLE_SECONDS = Integer.getInteger("settleSeconds", 60);

    private final Map<String, Integer> numbers = new ConcurrentHashMap<>();
    private final Map<String, List<String>> checkTimes = new ConcurrentHashMap<>();
    private final AtomicInteger executed = new AtomicInteger();
    private final AtomicInteger checks = new AtomicInteger();
    private final AtomicInteger unknownAnswers = new AtomicInteger();
    private final List<String> sendErrors = Env.list();

    private static boolean commits(int number) {
        int kind = number % 10;
        return kind <= 5 || kind == 8;
    }

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        TransactionMQProducer producer = env.transactionProducer("producers");
        producer.setTransactionListener(new Listener());
        // A check that takes its time must not hold up the next ones.
        producer.setExecutorService(Executors.newFixedThreadPool(4));
        producer.start();
        send(producer, topic, 0);

        List<List<String>> seen = new ArrayList<>();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            List<String> ids = Env.list();
            DefaultMQPushConsumer consumer = env.pushConsumer("consumers");
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> ids.add(message.getMsgId()));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
            seen.add(ids);
        }
        long balancing = System.nanoTime();
        boolean balanced = Env.await(30, () -> areBalanced(consumers, topic));
        long balancedMs = (System.nanoTime() - balancing) / 1_000_000;

        long start = System.nanoTime();
        ExecutorService senders = Executors.newFixedThreadPool(THREADS);
        for (int number = 1; number < COUNT; number++) {
            int now = number;
            senders.execute(() -> send(producer, topic, now));
        }
        senders.shutdown();
        senders.awaitTermination(60, TimeUnit.SECONDS);
        long sentMs = (System.nanoTime() - start) / 1_000_000;

        int expected = 0;
        for (int number = 0; number < COUNT; number++) {
            expected += commits(number) ? 1 : 0;
        }
        int wanted = expected;
        Env.await(SETTLE_SECONDS, () -> seen.get(0).size() + seen.get(1).size() >= wanted && checks.get() >= unknownAnswers.get());
        // What should not come (a second delivery, a check too many) gets the time to come.
        Thread.sleep(3000);

        Map<String, Object> result = new LinkedHashMap<>();
        List<String> committed = new ArrayList<>();
        List<String> rolledBack = new ArrayList<>();
        numbers.forEach((id, number) -> (commits(number) ? committed : rolledBack).add(id));
        result.put("balanced", balanced);
        result.put("balancedMs", balancedMs);
        result.put("executed", executed.get());
        result.put("sendErrors", sendErrors);
        result.put("committed", committed);
        result.put("rolledBack", rolledBack);
        result.put("seen", seen);
        result.put("unknownAnswers", unknownAnswers.get());
        result.put("checks", checks.get());
        result.put("checkTimes", checkTimes);
        result.put("sentMs", sentMs);
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        DefaultMQPullConsumer reader = env.pullConsumer("readers");
        List<Map<String, Object>> log = new ArrayList<>();
        for (MessageExt message : Env.readAll(reader, topic)) {
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("id", message.getMsgId());
            facts.put("number", message.getKeys());
            facts.put("transactionId", message.getTransactionId());
            facts.put("sysFlag", message.getSysFlag());
            facts.put("flag", message.getFlag());
            facts.put("preparedOffset", message.getPreparedTransactionOffset());
            facts.put("transactional", message.getProperty("TRAN_MSG"));
            log.add(facts);
        }
        result.put("log", log);
        reader.shutdown();
        producer.shutdown();
        return result;
    }

    /** Each has two queues, for a second: while a consumer still takes its first queues, two of four look balanced too. */
    private static boolean areBalanced(List<DefaultMQPushConsumer> consumers, String topic) throws Exception {
        for (int look = 0; look < 10; look++) {
            if (queues(consumers.get(0), topic) != 2 || queues(consumers.get(1), topic) != 2) {
                return false;
            }
            Thread.sleep(100);
        }
        return true;
    }

    private static long queues(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic))
            .count();
    }

    private void send(TransactionMQProducer producer, String topic, int number) {
        Message message = Env.message(topic, "order", Integer.toString(number));
        message.setFlag(number);
        if (number % 10 >= 8) {
            message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "1");
        }
        try {
            TransactionSendResult sent = producer.sendMessageInTransaction(message, number);
            if (!sent.getMsgId().equals(message.getTransactionId())) {
                sendErrors.add("transaction id " + message.getTransactionId() + " of " + sent);
            }
        } catch (Exception error) {
            sendErrors.add(number + ": " + error);
        }
    }

    private final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            int number = (Integer) argument;
            executed.incrementAndGet();
            numbers.put(message.getTransactionId(), number);
            if (number % 10 >= 8) {
                return unknown();
            }
            return commits(number) ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            checks.incrementAndGet();
            List<String> times = checkTimes.computeIfAbsent(message.getKeys(), key -> Env.list());
            times.add(String.valueOf(message.getProperty("TRANSACTION_CHECK_TIMES")));
            int number = numbers.get(message.getTransactionId());
            if (number / 10 % 5 == 0 && times.size() == 1) {
                return unknown();
            }
            return commits(number) ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }

        private LocalTransactionState unknown() {
            unknownAnswers.incrementAndGet();
            return LocalTransactionState.UNKNOW;
        }
    }
}
