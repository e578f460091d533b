package cdr;

import java.io.BufferedWriter;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.flink.api.common.functions.RuntimeContext;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;

/** Writes down each record that reaches an operator, and takes its time over it, so that others have to wait. */
public final class Seen implements Serializable {
    /** Of all slow operators: a cluster of this harness is one process. */
    private static final AtomicLong RECORDS = new AtomicLong();

    private final String name;
    private final Options options;
    private final boolean keyed;
    private final Pause pause;
    private transient PrintWriter file;
    private transient int subtask;

    public Seen(String name, Options options, boolean keyed) {
        this.name = name;
        this.options = options;
        this.keyed = keyed;
        this.pause = new Pause(options.pauseMicros);
    }

    /** How many records have been seen so far. */
    static long records() {
        return RECORDS.get();
    }

    public void open(RuntimeContext context) throws IOException {
        subtask = context.getTaskInfo().getIndexOfThisSubtask();
        if (options.seen != null) {
            Path path = Path.of(options.seen, name + "-" + subtask + ".csv");
            file = new PrintWriter(new BufferedWriter(Files.newBufferedWriter(path)));
        }
    }

    /** {@code count} is how many records of this key its state has counted, this one included. */
    public void record(Tuple4<Long, Integer, Long, ?> record, long count) {
        if (file != null) {
            Object expected = Records.payload(record.f3.getClass(), record.f1, record.f2, options);
            boolean home = !keyed || owner(record.f0) == subtask;
            record(record.f1, record.f2, record.f0, equal(expected, record.f3), home, count);
        } else {
            taken();
        }
    }

    /** The same, by whoever knows what a record should be and where. */
    public void record(int generator, long sequence, long key, boolean intact, boolean home, long count) {
        line(generator + "," + sequence + "," + key + "," + subtask + "," + (intact ? 1 : 0) + "," + (home ? 1 : 0) + ","
                + count);
        taken();
    }

    private void taken() {
        RECORDS.incrementAndGet();
        pause.take();
    }

    public void line(String line) {
        if (file != null) {
            file.println(line);
        }
    }

    public void close() {
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
