package cdr.shipped;

import cdr.Options;
import cdr.Seen;

import java.util.ArrayList;
import java.util.List;

import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.types.Row;

/** A source whose list state "gens" says which generators a subtask has, and which record each comes to next. */
final class Generator<T> extends RichParallelSourceFunction<T> implements CheckpointedFunction {
    private static final long EPOCH = 1_700_000_000_000L;
    private static final int RECORDS_PER_WATERMARK = 50;

    /** What becomes of a record. */
    enum Shape { TEXT, BYTES, ROW }

    private final Options options;
    private final Shape shape;
    private final int first;
    private final Seen seen;
    private volatile boolean running = true;
    private transient ListState<Tuple2<Integer, Long>> state;
    private transient List<Tuple2<Integer, Long>> generators;

    Generator(Options options, String uid, Shape shape, int first) {
        this.options = options;
        this.shape = shape;
        this.first = first;
        this.seen = new Seen("first-" + uid, options, false);
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        state = context.getOperatorStateStore()
                .getListState(new ListStateDescriptor<>("gens", Types.TUPLE(Types.INT, Types.LONG)));
        generators = new ArrayList<>();
        if (context.isRestored()) {
            state.get().forEach(generators::add);
        } else {
            generators.add(Tuple2.of(first + getRuntimeContext().getTaskInfo().getIndexOfThisSubtask(), 0L));
        }
        seen.open(getRuntimeContext());
        for (Tuple2<Integer, Long> generator : generators) {
            seen.line(generator.f0 + "," + generator.f1);
        }
        seen.close();
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        state.update(generators);
    }

    @Override
    public void run(SourceContext<T> context) {
        int sinceWatermark = 0;
        boolean some = true;
        while (running && some) {
            some = false;
            for (Tuple2<Integer, Long> generator : generators) {
                if (generator.f1 >= options.records) {
                    continue;
                }
                some = true;
                synchronized (context.getCheckpointLock()) {
                    long time = EPOCH + generator.f1;
                    T record = record(generator.f0, generator.f1++);
                    if (!options.timestamps) {
                        context.collect(record);
                    } else {
                        context.collectWithTimestamp(record, time);
                        if (++sinceWatermark == RECORDS_PER_WATERMARK) {
                            context.emitWatermark(new Watermark(time - 10));
                            sinceWatermark = 0;
                        }
                    }
                }
            }
        }
    }

    @SuppressWarnings("unchecked")
    private T record(int generator, long sequence) {
        long key = Contents.key(generator, sequence, options.keys);
        int length = Contents.length(generator, sequence, options.shortest, options.longest);
        switch (shape) {
            case BYTES:
                return (T) Tuple4.of(key, generator, sequence, Contents.bytes(generator, sequence, length));
            case ROW:
                return (T) Row.of(key, generator, sequence, Contents.text(generator, sequence, length));
            default:
                return (T) Tuple4.of(key, generator, sequence, Contents.text(generator, sequence, length));
        }
    }

    @Override
    public void cancel() {
        running = false;
    }
}
