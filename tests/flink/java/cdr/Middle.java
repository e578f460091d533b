package cdr;

import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.OperatorStateStore;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;

/**
 * Hands on what it is given, and has a list as operator state, split or union. A new job fills it; a restored one writes
 * down what it was given, as (subtask that filled it, number).
 */
final class Middle extends RichMapFunction<Tuple4<Long, Integer, Long, String>, Tuple4<Long, Integer, Long, String>>
        implements CheckpointedFunction {
    private static final long EACH = 1_000L;
    private static final ListStateDescriptor<Long> LIST = new ListStateDescriptor<>("middle", Types.LONG);

    private final boolean restores;
    private final boolean union;
    private final Seen given;

    Middle(Options options, boolean union) {
        this.restores = options.restores();
        this.union = union;
        this.given = new Seen("middle", options, false);
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        OperatorStateStore store = context.getOperatorStateStore();
        ListState<Long> list = union ? store.getUnionListState(LIST) : store.getListState(LIST);
        given.open(getRuntimeContext());
        for (Long value : list.get()) {
            given.line(value / EACH + "," + value % EACH);
        }
        // Flink does not call a subtask restored that had finished, so that the context would not tell.
        for (int n = 0; n < 4 && !restores; n++) {
            list.add(getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() * EACH + n);
        }
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) {}

    @Override
    public Tuple4<Long, Integer, Long, String> map(Tuple4<Long, Integer, Long, String> record) {
        return record;
    }

    @Override
    public void close() {
        given.close();
    }
}
