import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** The commands of a file, one a line with tabs between arguments, one after the other in this JVM; before each a line "#" with its number. */
public final class Mqadmin {
    public static void main(String[] args) throws Exception {
        System.setErr(System.out);
        int number = 0;
        for (String line : Files.readAllLines(Paths.get(args[0]))) {
            System.out.printf("%n#%d%n", number++);
            MQAdminStartup.main0(line.split("\t"), null);
        }
        System.exit(0);
    }
}
