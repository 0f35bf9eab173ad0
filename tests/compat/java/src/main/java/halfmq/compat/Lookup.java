package halfmq.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A message by its offset id, by its unique id and by its keys; and what of this an invisible message answers. */
final class Lookup implements Program {
    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer producer = env.producer("producers");
        Message message = Env.message(topic, "t", "wanted");
        message.setKeys("key-1 key-2");
        SendResult sent = producer.send(message);
        producer.send(Env.message(topic, "t", "other"));
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("byOffsetId", byId(producer, topic, sent.getOffsetMsgId(), 10));
        result.put("byUniqueId", byId(producer, topic, sent.getMsgId(), 10));
        for (String key : new String[] {"key-1", "key-2", "key-3"}) {
            result.put(key, byKey(producer, topic, key, key.equals("key-3") ? 0 : 10));
        }

        TransactionMQProducer transactions = env.transactionProducer("transactions");
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message half, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt half) {
                return LocalTransactionState.UNKNOW;
            }
        });
        transactions.start();
        for (LocalTransactionState state : LocalTransactionState.values()) {
            Message half = Env.message(topic, "t", state.name());
            SendResult prepared = transactions.sendMessageInTransaction(half, state);
            int seconds = state == LocalTransactionState.COMMIT_MESSAGE ? 10 : 0;
            Thread.sleep(500);
            result.put(state + " by key", byKey(producer, topic, state.name(), seconds));
            result.put(state + " by unique id", byId(producer, topic, prepared.getMsgId(), seconds));
        }
        transactions.shutdown();
        producer.shutdown();
        return result;
    }

    private static String byId(DefaultMQProducer producer, String topic, String id, int seconds) throws Exception {
        String[] text = new String[1];
        Env.await(seconds, () -> {
            try {
                MessageExt found = producer.viewMessage(topic, id);
                text[0] = found == null ? null : Env.text(found);
            } catch (Exception nothing) {
                Thread.sleep(100);
            }
            return text[0] != null;
        });
        return text[0];
    }

    /** The key index of a stock broker follows the log, so the first look may come too early. */
    private static List<String> byKey(DefaultMQProducer producer, String topic, String key, int seconds) throws Exception {
        List<String> texts = new ArrayList<>();
        Env.await(seconds, () -> {
            long now = System.currentTimeMillis();
            try {
                for (MessageExt found : producer.queryMessage(topic, key, 10, now - 3_600_000, now + 60_000).getMessageList()) {
                    texts.add(Env.text(found));
                }
            } catch (Exception nothing) {
                Thread.sleep(100);
            }
            return !texts.isEmpty();
        });
        return texts;
    }
}
