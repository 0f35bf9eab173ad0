package halfmq.compat;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Delay levels: 1 is a second, 2 is five. */
final class Delay implements Program {
    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer producer = env.producer("producers");
        producer.send(Env.message(topic, "t", "first"));
        List<Map<String, Object>> seen = Env.list();
        DefaultMQPushConsumer consumer = env.pushConsumer("consumers");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.currentTimeMillis();
            messages.forEach(message -> {
                Map<String, Object> facts = Env.facts(message);
                facts.put("ms", now - message.getBornTimestamp());
                seen.add(facts);
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Env.await(30, () -> seen.size() == 1);
        for (int level = 0; level <= 2; level++) {
            Message message = Env.message(topic, "t", "level" + level);
            message.setDelayTimeLevel(level);
            producer.send(message);
        }
        Env.await(30, () -> seen.size() == 4);
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("seen", seen);
        consumer.shutdown();
        producer.shutdown();
        return result;
    }
}
