package halfmq.compat;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** Where the server is, names that no other program uses, and the clients that programs work with. */
final class Env {
    /** The user of clients that do not say another one, and where secrets are: a file of its name for each user. */
    private static final String USER = System.getProperty("user", "");
    private static final String SECRETS = System.getProperty("secrets", "");

    private final String names;
    private final String prefix;
    private int instances;

    Env(String names, String prefix) {
        this.names = names;
        this.prefix = prefix;
    }

    String name(String suffix) {
        return prefix + "-" + suffix;
    }

    /** Its own client instance, so its own connection: by default all clients of a process share one. */
    synchronized <C extends ClientConfig> C configured(C client) {
        client.setNamesrvAddr(names);
        client.setInstanceName(name("instance-" + instances++));
        // A topic that is made while a consumer already waits for it is found after a second, not after thirty.
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(5000);
        client.setPersistConsumerOffsetInterval(1000);
        if (client instanceof DefaultMQProducer) {
            // 3 s by default: several clients that start at once on a busy machine need more.
            ((DefaultMQProducer) client).setSendMsgTimeout(10_000);
        }
        return client;
    }

    /** Signs as the user, with the secret as its file has it now; null for nobody. */
    static RPCHook hook(String user) {
        if (user.isEmpty()) {
            return null;
        }
        try {
            String secret = new String(Files.readAllBytes(Paths.get(SECRETS, user)), StandardCharsets.UTF_8).trim();
            return new AclClientRPCHook(new SessionCredentials(user, secret));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    DefaultMQProducer producer(String group) throws Exception {
        return producer(group, USER);
    }

    DefaultMQProducer producer(String group, String user) throws Exception {
        DefaultMQProducer producer = configured(new DefaultMQProducer(name(group), hook(user)));
        producer.start();
        return producer;
    }

    TransactionMQProducer transactionProducer(String group) {
        return transactionProducer(group, USER);
    }

    /** To be started once it has a listener. */
    TransactionMQProducer transactionProducer(String group, String user) {
        return configured(new TransactionMQProducer(name(group), hook(user)));
    }

    DefaultMQPushConsumer pushConsumer(String group) {
        return pushConsumer(group, USER);
    }

    DefaultMQPushConsumer pushConsumer(String group, String user) {
        DefaultMQPushConsumer consumer =
            configured(new DefaultMQPushConsumer(name(group), hook(user), new AllocateMessageQueueAveragely()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        return consumer;
    }

    DefaultMQPullConsumer pullConsumer(String group) throws Exception {
        DefaultMQPullConsumer consumer = configured(new DefaultMQPullConsumer(name(group), hook(USER)));
        consumer.start();
        return consumer;
    }

    static Message message(String topic, String tags, String text) {
        return new Message(topic, tags, text, text.getBytes(StandardCharsets.UTF_8));
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    /** What a consumer can say of one message. */
    static Map<String, Object> facts(MessageExt message) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("id", message.getMsgId());
        facts.put("topic", message.getTopic());
        facts.put("text", text(message));
        facts.put("tags", message.getTags());
        facts.put("keys", message.getKeys());
        facts.put("queue", message.getQueueId());
        facts.put("offset", message.getQueueOffset());
        facts.put("reconsumeTimes", message.getReconsumeTimes());
        facts.put("flag", message.getFlag());
        facts.put("sysFlag", message.getSysFlag());
        facts.put("storeTime", message.getStoreTimestamp());
        facts.put("properties", message.getProperties());
        return facts;
    }

    /** May be read while listeners add to it. */
    static <T> List<T> list() {
        return new CopyOnWriteArrayList<T>();
    }

    /** Waits until {@code done}, at most this long; whether it came true is in the numbers that the caller reports. */
    static boolean await(int seconds, Callable<Boolean> done) throws Exception {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (!done.call()) {
            if (System.nanoTime() > end) {
                return false;
            }
            Thread.sleep(20);
        }
        return true;
    }

    /** Everything that stands in the queues of a topic, from the first offset to the last. */
    static List<MessageExt> readAll(DefaultMQPullConsumer consumer, String topic) throws Exception {
        List<MessageExt> all = new ArrayList<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult result = consumer.pull(queue, "*", offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    all.addAll(result.getMsgFoundList());
                } else if (result.getNextBeginOffset() <= offset) {
                    throw new IllegalStateException(queue + " at " + offset + " of " + end + ": " + result);
                }
                offset = result.getNextBeginOffset();
            }
        }
        return all;
    }
}
