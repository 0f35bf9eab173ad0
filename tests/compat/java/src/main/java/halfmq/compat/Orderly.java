package halfmq.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.MixAll;

/** Two orderly consumers of one group: each order's steps come in order, also when one step is suspended once. */
final class Orderly implements Program {
    private static final int ORDERS = 8;
    private static final int STEPS = 12;

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer producer = env.producer("producers");
        send(producer, topic, 0, 1);
        Map<String, List<Integer>> steps = new ConcurrentHashMap<>();
        Map<String, Set<String>> consumersOfQueue = new ConcurrentHashMap<>();
        Set<String> suspended = ConcurrentHashMap.newKeySet();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            String name = "consumer" + i;
            DefaultMQPushConsumer consumer = env.pushConsumer("consumers");
            consumer.setSuspendCurrentQueueTimeMillis(200);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                String[] parts = Env.text(messages.get(0)).split(":");
                if (parts[1].equals("5") && suspended.add(parts[0])) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                String queue = String.valueOf(messages.get(0).getQueueId());
                consumersOfQueue.computeIfAbsent(queue, key -> ConcurrentHashMap.newKeySet()).add(name);
                steps.computeIfAbsent(parts[0], key -> Env.list()).add(Integer.valueOf(parts[1]));
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumers.add(consumer);
        }
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.start();
        }
        // Else the first one, on a busy machine, would be done with everything before the second has a queue.
        Env.await(60, () -> consumers.stream().noneMatch(Orderly::isIdle));
        send(producer, topic, 1, STEPS);
        Env.await(60, () -> steps.values().stream().mapToInt(List::size).sum() >= ORDERS * STEPS);
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("steps", steps);
        result.put("suspended", suspended.size());
        result.put("consumersOfQueue", consumersOfQueue);
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        producer.shutdown();
        return result;
    }

    private static void send(DefaultMQProducer producer, String topic, int from, int to) throws Exception {
        for (int step = from; step < to; step++) {
            for (int order = 0; order < ORDERS; order++) {
                producer.send(
                    Env.message(topic, "t", order + ":" + step),
                    (queues, message, number) -> queues.get((Integer) number % queues.size()),
                    order);
            }
        }
    }

    /** It has no queue of the topic; that of its retries does not count. */
    private static boolean isIdle(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .allMatch(queue -> queue.getTopic().startsWith(MixAll.RETRY_GROUP_TOPIC_PREFIX));
    }
}
