package halfmq.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** RECONSUME_LATER: "later" fails once and comes back; "dead" fails always and ends in the dead-letter queue. */
final class Retry implements Program {
    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer producer = env.producer("producers");
        for (String text : new String[] {"fine", "later", "dead"}) {
            producer.send(Env.message(topic, "t", text));
        }
        List<Map<String, Object>> seen = Env.list();
        DefaultMQPushConsumer consumer = env.pushConsumer("consumers");
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            Map<String, Object> facts = Env.facts(message);
            facts.put("at", System.currentTimeMillis());
            seen.add(facts);
            boolean fails = Env.text(message).equals("dead")
                || Env.text(message).equals("later") && message.getReconsumeTimes() == 0;
            context.setDelayLevelWhenNextConsume(1);
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQPullConsumer reader = env.pullConsumer("readers");
        List<Map<String, Object>> dead = new ArrayList<>();
        boolean found = Env.await(40, () -> {
            dead.clear();
            try {
                for (MessageExt message : Env.readAll(reader, "%DLQ%" + env.name("consumers"))) {
                    dead.add(Env.facts(message));
                }
            } catch (MQClientException error) {
                Thread.sleep(500); // no such topic yet
            }
            return !dead.isEmpty();
        });
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("seen", seen);
        result.put("dead", dead);
        result.put("found", found);
        consumer.shutdown();
        reader.shutdown();
        producer.shutdown();
        return result;
    }
}
