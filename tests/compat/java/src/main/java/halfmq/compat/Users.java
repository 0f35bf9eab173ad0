package halfmq.compat;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Programs as users of the broker, beside each other: one of each name in the property "users.runs", which is "ROLE:USER" or
 * "ROLE:USER:OTHER", OTHER being the other end of an exchange. Topic and groups of a run are named after USER. A run of
 * "users.refused" does not come to its end where the client only logs that the broker refuses it; it stays until a file is there.
 */
final class Users implements Program {
    private static final File UNTIL = new File(System.getProperty("users.until", "/"));
    private static final List<String> REFUSED = Arrays.asList(System.getProperty("users.refused", "").split(","));

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        Map<String, Object> results = Collections.synchronizedMap(new LinkedHashMap<>());
        String[] runs = System.getProperty("users.runs").split(",");
        ExecutorService threads = Executors.newCachedThreadPool();
        for (String run : runs) {
            String[] words = run.split(":");
            threads.execute(() -> {
                Map<String, Object> result = Collections.synchronizedMap(new LinkedHashMap<>());
                results.put(words[1], result);
                try {
                    act(env, words, result);
                } catch (Throwable error) {
                    result.put("error", said(error));
                }
            });
        }
        threads.shutdown();
        threads.awaitTermination(120, TimeUnit.SECONDS);
        return results;
    }

    private static void act(Env env, String[] words, Map<String, Object> result) throws Exception {
        switch (words[0]) {
            case "send":
                send(env, words[1], result);
                break;
            case "transactions":
                transactions(env, words[1], result);
                break;
            case "consume":
                consume(env, words[1], result);
                break;
            case "request":
                exchange(env, words[1], words[1], words[2], result);
                break;
            case "reply":
                exchange(env, words[1], words[2], words[1], result);
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static void send(Env env, String user, Map<String, Object> result) throws Exception {
        DefaultMQProducer producer = env.producer(user + "-group", user);
        try {
            result.put("sent", producer.send(Env.message(env.name(user + "-topic"), "t", "plain")).getSendStatus().name());
        } finally {
            producer.shutdown();
        }
    }

    /** One that commits, one that rolls back, and one that a check commits. */
    private static void transactions(Env env, String user, Map<String, Object> result) throws Exception {
        List<String> checked = Env.list();
        TransactionMQProducer producer = env.transactionProducer(user + "-group", user);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checked.add(Env.text(message));
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        try {
            for (LocalTransactionState state : LocalTransactionState.values()) {
                Message message = Env.message(env.name(user + "-topic"), "t", state.name());
                message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "1");
                producer.sendMessageInTransaction(message, state);
            }
            Env.await(60, () -> !checked.isEmpty());
            result.put("checked", checked);
        } finally {
            producer.shutdown();
        }
    }

    /** Fails once with each message, which is then sent back. */
    private static void consume(Env env, String user, Map<String, Object> result) throws Exception {
        List<String> seen = Env.list();
        result.put("seen", seen);
        DefaultMQPushConsumer consumer = env.pushConsumer(user + "-group", user);
        consumer.subscribe(env.name(user + "-topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            seen.add(Env.text(message) + " " + message.getReconsumeTimes());
            context.setDelayLevelWhenNextConsume(1);
            return message.getReconsumeTimes() == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            Env.await(60, () -> seen.size() >= 2 || isOver(user));
        } finally {
            consumer.shutdown();
        }
    }

    private static void exchange(Env env, String user, String asks, String replies, Map<String, Object> result) throws Exception {
        String topic = env.name(user + "-topic");
        DefaultMQProducer requester = env.producer(user + "-requesters", asks);
        DefaultMQProducer replier = env.producer(user + "-repliers", replies);
        DefaultMQPushConsumer consumer = env.pushConsumer(user + "-consumers", replies);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("re: " + Env.text(message)).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(message, body));
                } catch (Exception error) {
                    // Before its first heartbeat, which a 4.x client sends late, the broker does not know a requester.
                    result.put("replyError", said(error));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            Env.await(60, () -> {
                try {
                    result.put("reply", Env.text(requester.request(Env.message(topic, "t", "question"), 2_000)));
                    return true;
                } catch (Exception error) {
                    if (said(error).contains("CODE: 16")) {
                        throw error;
                    }
                    // No reply; or the time of this or another request was over before it was sent or answered, on a busy machine.
                    return user.equals(replies) && isOver(user);
                }
            });
        } finally {
            consumer.shutdown();
            requester.shutdown();
            replier.shutdown();
        }
    }

    private static boolean isOver(String user) {
        return REFUSED.contains(user) && UNTIL.exists();
    }

    /** An error and what caused it. */
    private static String said(Throwable error) {
        StringBuilder text = new StringBuilder();
        for (Throwable one = error; one != null; one = one.getCause()) {
            text.append(one).append("\n");
        }
        return text.toString();
    }
}
