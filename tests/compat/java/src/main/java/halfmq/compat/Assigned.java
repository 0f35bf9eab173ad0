package halfmq.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** Two consumers that leave it to the broker who reads which queue; clients before 5.0 cannot. */
final class Assigned implements Program {
    private static final int MESSAGES = 40;

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer producer = env.producer("producers");
        producer.send(Env.message(topic, "t", "first"));
        Map<String, Object> result = new LinkedHashMap<>();
        Map<String, Set<Integer>> queues = new ConcurrentHashMap<>();
        List<String> seen = Env.list();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            String name = "consumer" + i;
            DefaultMQPushConsumer consumer = env.pushConsumer("consumers");
            try {
                DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            } catch (NoSuchMethodException error) {
                producer.shutdown();
                result.put("offered", false);
                return result;
            }
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> {
                    seen.add(Env.text(message));
                    queues.computeIfAbsent(name, key -> ConcurrentHashMap.newKeySet()).add(message.getQueueId());
                });
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        // The first one has all queues until both have been told who has which.
        Env.await(40, () -> {
            queues.clear();
            for (int i = 0; i < 16; i++) {
                producer.send(Env.message(topic, "t", "probe"));
            }
            Thread.sleep(300);
            return queues.size() == 2 && queues.values().stream().mapToInt(Set::size).sum() == 4;
        });
        queues.clear();
        for (int i = 0; i < MESSAGES; i++) {
            producer.send(Env.message(topic, "t", "m" + i));
        }
        Env.await(20, () -> seen.stream().filter(text -> text.startsWith("m")).distinct().count() >= MESSAGES);
        result.put("offered", true);
        result.put("seen", seen);
        result.put("queues", queues);
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        producer.shutdown();
        return result;
    }
}
