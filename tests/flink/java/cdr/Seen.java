package cdr;

import java.io.BufferedWriter;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

import org.apache.flink.api.common.functions.RuntimeContext;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;

/** Writes down each record that reaches an operator, and takes its time over it, so that others have to wait. */
final class Seen implements Serializable {
    private final String name;
    private final Options options;
    private final boolean keyed;
    private final Pause pause;
    private transient PrintWriter file;
    private transient int subtask;

    Seen(String name, Options options, boolean keyed) {
        this.name = name;
        this.options = options;
        this.keyed = keyed;
        this.pause = new Pause(options.pauseMicros);
    }

    void open(RuntimeContext context) throws IOException {
        subtask = context.getTaskInfo().getIndexOfThisSubtask();
        if (options.seen != null) {
            Path path = Path.of(options.seen, name + "-" + subtask + ".csv");
            file = new PrintWriter(new BufferedWriter(Files.newBufferedWriter(path)));
        }
    }

    /** {@code count} is how many records of this key its state has counted, this one included. */
    void record(Tuple4<Long, Integer, Long, ?> record, long count) {
        if (file != null) {
            Object expected = Records.payload(record.f3.getClass(), record.f1, record.f2, options);
            int intact = equal(expected, record.f3) ? 1 : 0;
            int home = !keyed || owner(record.f0) == subtask ? 1 : 0;
            line(record.f1 + "," + record.f2 + "," + record.f0 + "," + subtask + "," + intact + "," + home + "," + count);
        }
        pause.take();
    }

    void line(String line) {
        if (file != null) {
            file.println(line);
        }
    }

    void close() {
        if (file != null) {
            file.close();
        }
    }

    private int owner(Long key) {
        return KeyGroupRangeAssignment.assignKeyToParallelOperator(key, options.maxParallelism, options.parallelism);
    }

    private static boolean equal(Object expected, Object found) {
        return expected instanceof byte[]
                ? Arrays.equals((byte[]) expected, (byte[]) found)
                : expected.equals(found);
    }
}
