package halfmq.compat;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Two groups on one topic: one wants two tags, the other everything. "Aa" and "BB" have the same hash code. */
final class Tags implements Program {
    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer producer = env.producer("producers");
        for (int round = 0; round < 5; round++) {
            for (String tag : new String[] {"Aa", "BB", "C", "D"}) {
                producer.send(Env.message(topic, tag, tag + round));
            }
            producer.send(new Message(topic, ("none" + round).getBytes("UTF-8")));
        }
        List<String> some = Env.list();
        List<String> all = Env.list();
        DefaultMQPushConsumer picky = consumer(env, "picky", topic, "Aa || C", some);
        DefaultMQPushConsumer greedy = consumer(env, "greedy", topic, "*", all);
        Env.await(30, () -> some.size() >= 10 && all.size() >= 25);
        Thread.sleep(1000);
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("some", some);
        result.put("all", all);
        picky.shutdown();
        greedy.shutdown();
        producer.shutdown();
        return result;
    }

    private static DefaultMQPushConsumer consumer(Env env, String group, String topic, String tags, List<String> seen)
        throws Exception {
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        consumer.subscribe(topic, tags);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(Env.text(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
