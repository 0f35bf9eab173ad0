package halfmq.compat;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.exception.RemotingTooMuchRequestException;

/** Replies to somebody else's requests, and requests what somebody else replies to. Stays until a file is there. */
final class Exchange implements Program {
    private static final File UNTIL = new File(System.getProperty("exchange.until", "/"));

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        DefaultMQProducer producer = env.producer("clients");
        Map<String, Object> result = Collections.synchronizedMap(new LinkedHashMap<>());
        DefaultMQPushConsumer consumer = env.pushConsumer("consumers");
        consumer.subscribe(env.name("to-java"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("java: " + Env.text(message)).getBytes(StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(message, body));
                } catch (Exception error) {
                    result.putIfAbsent("error", String.valueOf(error));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        String large = new String(new char[20_000]).replace("\0", "large ");
        for (String text : new String[] {"small", large}) {
            Message[] reply = new Message[1];
            // Asked until it is replied to: a broker knows a requester from its first heartbeat, which a 4.x client sends late.
            Env.await(60, () -> {
                try {
                    reply[0] = producer.request(new Message(env.name("to-python"), text.getBytes(StandardCharsets.UTF_8)), 3_000);
                    return true;
                } catch (RequestTimeoutException | RemotingTooMuchRequestException error) {
                    return false;
                }
            });
            result.put(text == large ? "large" : text, reply[0] != null && Env.text(reply[0]).equals("python: " + text));
        }
        result.put("ended", Env.await(60, UNTIL::exists));
        consumer.shutdown();
        producer.shutdown();
        return result;
    }
}
