package halfmq.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A producer and a consumer with trace: what each of them writes into the trace topic. */
final class Trace implements Program {
    private static final int MESSAGES = 5;

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        String traces = env.name("traces");
        // A trace is not sent to a topic without a route, so somebody else makes it.
        DefaultMQProducer maker = env.producer("maker");
        maker.send(Env.message(traces, "t", "first"));
        DefaultMQProducer producer = env.configured(new DefaultMQProducer(env.name("producers"), true, traces));
        producer.start();
        List<String> ids = new ArrayList<>();
        for (int i = 0; i < MESSAGES; i++) {
            ids.add(producer.send(Env.message(topic, "t", "m" + i)).getMsgId());
        }
        DefaultMQPushConsumer consumer = env.configured(new DefaultMQPushConsumer(
            env.name("consumers"), null, new AllocateMessageQueueAveragely(), true, traces));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        List<String> seen = Env.list();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(Env.text(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Env.await(30, () -> seen.size() >= MESSAGES);
        DefaultMQPullConsumer reader = env.pullConsumer("readers");
        List<String> records = new ArrayList<>();
        Env.await(15, () -> {
            records.clear();
            for (MessageExt message : Env.readAll(reader, traces)) {
                for (String record : Env.text(message).split("\u0002")) {
                    records.add(record.replace('\u0001', '|'));
                }
            }
            return records.stream().filter(record -> record.startsWith("SubAfter|")).count() >= MESSAGES
                && records.stream().filter(record -> record.startsWith("Pub|")).count() >= MESSAGES;
        });
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("ids", ids);
        result.put("seen", seen);
        result.put("records", records);
        consumer.shutdown();
        reader.shutdown();
        producer.shutdown();
        maker.shutdown();
        return result;
    }
}
