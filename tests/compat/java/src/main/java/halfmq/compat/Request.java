package halfmq.compat;

import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.exception.RemotingTooMuchRequestException;

/** Requests that wait for the reply of a consumer: one after another, a large one, and one whose requester is gone. */
final class Request implements Program {
    private static final int REQUESTS = 5;
    /** Asked until it is replied to: a broker knows a requester from its first heartbeat, which a 4.x client sends late. */
    private static final String FIRST = "first";

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer replier = env.producer("repliers");
        DefaultMQProducer requester = env.producer("requesters");
        Map<String, Object> result = Collections.synchronizedMap(new LinkedHashMap<>());
        DefaultMQPushConsumer consumer = env.pushConsumer("consumers");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("re: " + Env.text(message)).getBytes(StandardCharsets.UTF_8);
                    SendResult sent = replier.send(MessageUtil.createReplyMessage(message, body));
                    result.put("replied", sent.getSendStatus().name());
                } catch (Exception error) {
                    if (!Env.text(message).equals(FIRST)) {
                        result.putIfAbsent("replyError", String.valueOf(error));
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        requester.send(Env.message(topic, "t", "no request"));
        consumer.start();
        Env.await(20, () -> {
            try {
                return requester.request(Env.message(topic, "t", FIRST), 1_000) != null;
            } catch (RequestTimeoutException | RemotingTooMuchRequestException error) {
                return false; // or the time was over before the request was sent, on a busy machine
            }
        });
        StringBuilder large = new StringBuilder();
        for (int i = 0; i < 20_000; i++) {
            large.append((char) ('a' + i * 7919 % 26));
        }
        for (int i = 0; i < REQUESTS; i++) {
            String text = i < REQUESTS - 1 ? "q" + i : large.toString();
            long start = System.nanoTime();
            Message reply = requester.request(Env.message(topic, "t", text), 20_000);
            result.put("reply" + i, Env.text(reply).equals("re: " + text));
            result.put("ms" + i, (System.nanoTime() - start) / 1_000_000);
        }
        Env.await(10, () -> result.containsKey("replyError"));
        consumer.shutdown();
        requester.shutdown();
        replier.shutdown();
        return result;
    }
}
