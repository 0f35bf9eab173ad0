package halfmq.compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way to send a plain message: waiting, with a callback, one-way, to a queue, as a batch, large enough to be packed. */
final class Sends implements Program {
    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        Map<String, Object> result = new LinkedHashMap<>();
        DefaultMQProducer producer = env.producer("producers");
        producer.send(Env.message(topic, "t", "sync"));

        List<String> failures = Env.list();
        CountDownLatch answers = new CountDownLatch(10);
        for (int i = 0; i < 10; i++) {
            producer.send(Env.message(topic, "t", "async" + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    answers.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failures.add(String.valueOf(error));
                    answers.countDown();
                }
            });
        }
        result.put("asyncAnswered", answers.await(20, TimeUnit.SECONDS));
        result.put("asyncFailures", failures);

        MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(1);
        SendResult chosen = producer.send(Env.message(topic, "t", "chosen"), queue);
        result.put("chosenQueue", queue.getQueueId());
        result.put("answeredQueue", chosen.getMessageQueue().getQueueId());

        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            batch.add(Env.message(topic, "batch", "batch" + i));
        }
        SendResult batched = producer.send(batch, queue);
        result.put("batchIds", batched.getOffsetMsgId().split(",").length);
        result.put("batchUniqueIds", batched.getMsgId().split(",").length);
        result.put("batchFirstOffset", batched.getQueueOffset());
        result.put("chosenOffset", chosen.getQueueOffset());

        StringBuilder large = new StringBuilder();
        for (int i = 0; i < 20_000; i++) {
            large.append(i);
        }
        producer.send(new Message(topic, "large", large.toString().getBytes(StandardCharsets.UTF_8)));
        Message special = Env.message(topic, "t", "special");
        special.putUserProperty("name", "caf\u00e9 \"quoted\" \\ \ud83d\ude00");
        special.setFlag(77);
        producer.send(special);
        producer.sendOneway(Env.message(topic, "t", "oneway"));

        DefaultMQPullConsumer reader = env.pullConsumer("readers");
        List<MessageExt> all = new ArrayList<>();
        Env.await(20, () -> {
            all.clear();
            all.addAll(Env.readAll(reader, topic));
            return all.size() >= 65;
        });
        List<Map<String, Object>> messages = new ArrayList<>();
        for (MessageExt message : all) {
            Map<String, Object> facts = Env.facts(message);
            if ("large".equals(message.getTags())) {
                facts.put("text", Env.text(message).equals(large.toString()) ? "large" : "damaged");
            }
            facts.put("bornHost", message.getBornHostString());
            messages.add(facts);
        }
        result.put("messages", messages);
        reader.shutdown();
        producer.shutdown();
        return result;
    }
}
