package halfmq.compat;

import java.util.Map;

/** One scenario. It bounds its own waits, judges nothing, and gives back what it saw. */
interface Program {
    Map<String, Object> run(Env env) throws Exception;
}
