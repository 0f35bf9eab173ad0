package halfmq.bench;

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.ChangeConsumer;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.Reader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Debezium's outbox event router with its embedded engine, publishing to Kafka: OutboxRouter ENGINE-PROPERTIES PRODUCER-PROPERTIES, until
 * SIGTERM.
 *
 * <p>A batch is sent, then its acknowledgements are awaited, and only then is each record marked as processed: as Debezium Server's sink for
 * Kafka does it (KafkaChangeConsumer). Records come as Kafka Connect's, without a conversion in between, and key, value and the id of the event
 * are written as they are.
 */
public final class OutboxRouter implements ChangeConsumer<RecordChangeEvent<SourceRecord>> {
    /** What our relay names the header with the message id, which the router names "id". */
    private static final String MESSAGE_ID = "message-id";

    private final KafkaProducer<byte[], byte[]> producer;

    private OutboxRouter(KafkaProducer<byte[], byte[]> producer) {
        this.producer = producer;
    }

    public static void main(String[] files) throws Exception {
        var producer = new KafkaProducer<>(read(files[1]), new ByteArraySerializer(), new ByteArraySerializer());
        var engine =
                DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                        .using(read(files[0]))
                        .using((success, message, error) -> {
                            if (!success) {
                                System.err.println(message);
                                Runtime.getRuntime().halt(1);
                            }
                        })
                        .notifying(new OutboxRouter(producer))
                        .build();
        var runs = new Thread(engine, "engine");
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                engine.close();
                runs.join();
            } catch (Exception error) {
                error.printStackTrace();
            }
            producer.close();
        }));
        runs.start();
    }

    @Override
    public void handleBatch(
            List<RecordChangeEvent<SourceRecord>> batch, RecordCommitter<RecordChangeEvent<SourceRecord>> committer)
            throws InterruptedException {
        List<Future<RecordMetadata>> acknowledgements = new ArrayList<>(batch.size());
        for (var event : batch) {
            acknowledgements.add(producer.send(toKafka(event.record())));
        }
        try {
            for (int number = 0; number < batch.size(); number++) {
                acknowledgements.get(number).get();
                committer.markProcessed(batch.get(number));
            }
        } catch (ExecutionException error) {
            throw new IllegalStateException(error.getCause());
        }
        committer.markBatchFinished();
    }

    private static ProducerRecord<byte[], byte[]> toKafka(SourceRecord record) {
        Header id = new RecordHeader(MESSAGE_ID, bytes(record.headers().lastWithName("id").value()));
        return new ProducerRecord<>(
                record.topic(), null, record.timestamp(), bytes(record.key()), bytes(record.value()), List.of(id));
    }

    private static byte[] bytes(Object value) {
        if (value instanceof String text) {
            return text.getBytes(StandardCharsets.UTF_8);
        }
        return value instanceof ByteBuffer buffer ? buffer.array() : (byte[]) value;
    }

    private static Properties read(String file) throws Exception {
        var properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(file))) {
            properties.load(reader);
        }
        return properties;
    }
}
