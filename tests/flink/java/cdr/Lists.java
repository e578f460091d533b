package cdr;

import java.util.Map;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.BroadcastState;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.OperatorStateStore;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Counts records as {@link Slow.Keyed} does, and has operator state of every kind: two lists that are split, a union
 * list, a broadcast map, and a list that only odd subtasks know. A new job fills them, differently in each subtask where
 * they may differ; a restored one writes down what it was given, as (kind, subtask that filled it, number).
 */
final class Lists<P> extends KeyedProcessFunction<Long, Tuple4<Long, Integer, Long, P>, Long>
        implements CheckpointedFunction {
    private static final int FEW = 0;
    private static final int MANY = 1;
    private static final int UNION = 2;
    private static final int BROADCAST = 3;
    private static final int ODD = 4;
    private static final long EACH = 1_000_000L;
    private static final ListStateDescriptor<Long> ODDS = new ListStateDescriptor<>("odd", Types.LONG);

    private final Seen seen;
    private final Seen given;
    private transient ValueState<Long> counts;

    Lists(Options options) {
        seen = new Seen("slow", options, true);
        given = new Seen("lists", options, false);
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        OperatorStateStore store = context.getOperatorStateStore();
        ListState<String> few = store.getListState(new ListStateDescriptor<>("few", Types.STRING));
        ListState<Long> many = store.getListState(new ListStateDescriptor<>("many", Types.LONG));
        ListState<Long> union = store.getUnionListState(new ListStateDescriptor<>("union", Types.LONG));
        BroadcastState<Integer, Long> broadcast =
                store.getBroadcastState(new MapStateDescriptor<>("broadcast", Types.INT, Types.LONG));
        int subtask = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
        given.open(getRuntimeContext());
        if (context.isRestored()) {
            tell(few, many, union, broadcast);
            tell(ODD, store.getListState(ODDS));
        } else {
            fill(subtask, few, many, union, broadcast);
            if (subtask % 2 == 1) {
                add(store.getListState(ODDS), subtask, 5);
            }
        }
    }

    private static void add(ListState<Long> list, int subtask, int count) throws Exception {
        for (int n = 0; n < count; n++) {
            list.add(subtask * EACH + n);
        }
    }

    private void tell(int kind, ListState<Long> list) throws Exception {
        for (Long value : list.get()) {
            given.line(kind + "," + value / EACH + "," + value % EACH);
        }
    }

    private static void fill(int subtask, ListState<String> few, ListState<Long> many, ListState<Long> union,
            BroadcastState<Integer, Long> broadcast) throws Exception {
        for (int n = 0; n <= subtask; n++) {
            few.add(subtask + "/" + n + "/" + "x".repeat(n * 7));
        }
        add(many, subtask, 100 + 10 * subtask);
        add(union, subtask, 4 + subtask);
        for (int n = 0; n < 20; n++) {
            broadcast.put(n, (long) n * n);
        }
    }

    private void tell(ListState<String> few, ListState<Long> many, ListState<Long> union,
            BroadcastState<Integer, Long> broadcast) throws Exception {
        for (String value : few.get()) {
            String[] parts = value.split("/", 3);
            int length = 7 * Integer.parseInt(parts[1]);
            given.line(FEW + "," + parts[0] + "," + (parts[2].length() == length ? parts[1] : "-1"));
        }
        tell(MANY, many);
        tell(UNION, union);
        for (Map.Entry<Integer, Long> entry : broadcast.entries()) {
            given.line(BROADCAST + "," + entry.getKey() + "," + entry.getValue());
        }
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) {}

    @Override
    public void open(OpenContext context) throws Exception {
        seen.open(getRuntimeContext());
        counts = Slow.counts(getRuntimeContext());
    }

    @Override
    public void processElement(Tuple4<Long, Integer, Long, P> record, Context context, Collector<Long> out)
            throws Exception {
        long count = Slow.next(counts);
        seen.record(record, count);
        out.collect(count);
    }

    @Override
    public void close() {
        seen.close();
        given.close();
    }
}
