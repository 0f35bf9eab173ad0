package halfmq.soak;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/**
 * The local transaction and its fence, on PostgreSQL: a marker 'C' is written with the order; a check that finds none
 * writes 'R' under the same key, which makes a late commit impossible. One connection per thread.
 */
final class Database {
    /** PostgreSQL: unique_violation, lock_not_available. */
    private static final String TAKEN = "23505";
    private static final String LOCKED = "55P03";

    private final String url;
    private final ThreadLocal<Connection> connections = new ThreadLocal<>();

    Database(String url) {
        this.url = url;
    }

    /** Marker, order and its line in one transaction. {@code beforeCommit} runs after all writes. */
    void place(String id, String group, String topic, long crc, String tag, Runnable beforeCommit) throws SQLException {
        Connection connection = connection();
        try {
            insert(connection, "INSERT INTO java_tx (tx_id, outcome) VALUES (?, 'C')", id);
            insert(connection, "INSERT INTO orders (tx_id, producer_group, customer, messages) VALUES (?, ?, 1, 1)", id, group);
            insert(connection, "INSERT INTO lines (tx_id, number, topic, crc, tag) VALUES (?, 0, ?, " + crc + ", ?)", id, topic, tag);
            beforeCommit.run();
            connection.commit();
        } catch (SQLException | RuntimeException error) {
            forget(connection);
            throw error;
        }
    }

    /** 'C', 'R', or 0 while the outcome is unknown because the local transaction is still running. */
    char fence(String id) throws SQLException {
        Connection connection = connection();
        try {
            char standing = look(connection, id);
            if (standing == 0) {
                insert(connection, "INSERT INTO java_tx (tx_id, outcome) VALUES (?, 'R')", id);
                standing = 'R';
            }
            connection.commit();
            return standing;
        } catch (SQLException error) {
            forget(connection);
            if (TAKEN.equals(error.getSQLState())) {
                char standing = look(connection(), id);
                connection().commit();
                return standing;
            }
            if (LOCKED.equals(error.getSQLState())) {
                return 0;
            }
            throw error;
        }
    }

    private static char look(Connection connection, String id) throws SQLException {
        try (PreparedStatement select = connection.prepareStatement("SELECT outcome FROM java_tx WHERE tx_id = ?")) {
            select.setString(1, id);
            try (ResultSet rows = select.executeQuery()) {
                return rows.next() ? rows.getString(1).charAt(0) : 0;
            }
        }
    }

    private static void insert(Connection connection, String statement, String... values) throws SQLException {
        try (PreparedStatement insert = connection.prepareStatement(statement)) {
            for (int i = 0; i < values.length; i++) {
                insert.setString(i + 1, values[i]);
            }
            insert.executeUpdate();
        }
    }

    private Connection connection() throws SQLException {
        Connection connection = connections.get();
        if (connection == null) {
            connection = DriverManager.getConnection(url);
            try (Statement statement = connection.createStatement()) {
                // A check does not wait for a local transaction that is still running.
                statement.execute("SET lock_timeout = '500ms'");
            }
            connection.setAutoCommit(false);
            connections.set(connection);
        }
        return connection;
    }

    /** After an error the state of the connection is unknown: the next call opens another one. */
    private void forget(Connection connection) {
        connections.remove();
        try {
            connection.close();
        } catch (SQLException ignored) {
            // It was broken already; PostgreSQL rolls back its transaction.
        }
    }
}
