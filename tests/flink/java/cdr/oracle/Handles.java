package cdr.oracle;

import java.io.IOException;
import java.util.Map;
import java.util.TreeMap;

import org.apache.flink.runtime.checkpoint.OperatorState;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.runtime.checkpoint.metadata.CheckpointMetadata;
import org.apache.flink.runtime.state.ChannelStateHelper;
import org.apache.flink.runtime.state.InputChannelStateHandle;
import org.apache.flink.runtime.state.KeyGroupsStateHandle;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.OperatorStateHandle;
import org.apache.flink.runtime.state.ResultSubpartitionStateHandle;
import org.apache.flink.runtime.state.StreamStateHandle;
import org.apache.flink.runtime.state.changelog.ChangelogStateBackendHandle;
import org.apache.flink.runtime.state.filemerging.SegmentFileStateHandle;
import org.apache.flink.runtime.state.filesystem.FileStateHandle;
import org.apache.flink.runtime.state.filesystem.RelativeFileStateHandle;
import org.apache.flink.runtime.state.memory.ByteStreamStateHandle;

/** The metadata, as lines: operators and all state handles. */
final class Handles {
    private final Lines lines;

    Handles(Lines lines) {
        this.lines = lines;
    }

    void write(CheckpointMetadata metadata) throws IOException {
        for (OperatorState operator : metadata.getOperatorStates()) {
            String id = operator.getOperatorID().toHexString();
            lines.add("type", "operator", "operator_id", id,
                    "name", operator.getOperatorName().orElse(null), "uid", operator.getOperatorUid().orElse(null),
                    "parallelism", operator.getParallelism(), "max_parallelism", operator.getMaxParallelism(),
                    "coordinator_state_bytes",
                    operator.getCoordinatorState() == null ? 0 : operator.getCoordinatorState().getStateSize(),
                    "subtask_states", operator.getNumberCollectedStates(),
                    "fully_finished", operator.isFullyFinished());
            for (Map.Entry<Integer, OperatorSubtaskState> entry : new TreeMap<>(operator.getSubtaskStates()).entrySet()) {
                subtask(id, entry.getKey(), entry.getValue());
            }
        }
    }

    private void subtask(String operator, int subtask, OperatorSubtaskState state) throws IOException {
        if (state.isFinished()) {
            lines.add("type", "finished_subtask", "operator_id", operator, "subtask", subtask);
        }
        for (KeyedStateHandle handle : state.getManagedKeyedState()) {
            lines.add(keyed(operator, subtask, handle));
        }
        for (OperatorStateHandle handle : state.getManagedOperatorState()) {
            Map<String, Object> states = new TreeMap<>();
            handle.getStateNameToPartitionOffsets().forEach((name, info) -> states.put(name, Lines.object(
                    "mode", info.getDistributionMode().toString(), "offsets", info.getOffsets())));
            Map<String, Object> line = Lines.object(
                    "type", "operator_state", "operator_id", operator, "subtask", subtask, "states", states);
            place(line, handle.getDelegateStateHandle());
            lines.add(line);
        }
        for (InputChannelStateHandle handle : ChannelStateHelper.extractUnmergedInputHandles(state)) {
            Map<String, Object> line = Lines.object("type", "handle", "kind", "input", "operator_id", operator,
                    "subtask", handle.getSubtaskIndex(), "gate", handle.getInfo().getGateIdx(),
                    "channel", handle.getInfo().getInputChannelIdx(), "size", handle.getStateSize(),
                    "offsets", handle.getOffsets());
            place(line, handle.getDelegate());
            lines.add(line);
        }
        for (ResultSubpartitionStateHandle handle : ChannelStateHelper.extractUnmergedOutputHandles(state)) {
            Map<String, Object> line = Lines.object("type", "handle", "kind", "output", "operator_id", operator,
                    "subtask", handle.getSubtaskIndex(), "partition", handle.getInfo().getPartitionIdx(),
                    "subpartition", handle.getInfo().getSubPartitionIdx(), "size", handle.getStateSize(),
                    "offsets", handle.getOffsets());
            place(line, handle.getDelegate());
            lines.add(line);
        }
    }

    private static Map<String, Object> keyed(String operator, int subtask, KeyedStateHandle handle) {
        Map<String, Object> line = Lines.object("type", "keyed_state", "operator_id", operator, "subtask", subtask,
                "class", handle.getClass().getSimpleName(),
                "kg_start", handle.getKeyGroupRange().getStartKeyGroup(),
                "kg_end", handle.getKeyGroupRange().getEndKeyGroup(), "size", handle.getStateSize());
        if (handle instanceof KeyGroupsStateHandle) {
            place(line, ((KeyGroupsStateHandle) handle).getDelegateStateHandle());
        }
        if (handle instanceof ChangelogStateBackendHandle) {
            ChangelogStateBackendHandle changelog = (ChangelogStateBackendHandle) handle;
            line.put("materialized", changelog.getMaterializedStateHandles().size());
            line.put("changes", changelog.getNonMaterializedStateHandles().size());
        }
        return line;
    }

    private static void place(Map<String, Object> line, StreamStateHandle stream) {
        line.put("inline", stream instanceof ByteStreamStateHandle);
        line.put("underlying", name(stream));
        line.put("underlying_class", stream.getClass().getSimpleName());
        line.put("underlying_size", stream.getStateSize());
        if (stream instanceof SegmentFileStateHandle) {
            line.put("underlying_start", ((SegmentFileStateHandle) stream).getStartPos());
        }
    }

    private static String name(StreamStateHandle stream) {
        if (stream instanceof ByteStreamStateHandle) {
            return ((ByteStreamStateHandle) stream).getHandleName();
        }
        if (stream instanceof RelativeFileStateHandle) {
            return ((RelativeFileStateHandle) stream).getRelativePath();
        }
        if (stream instanceof SegmentFileStateHandle) {
            return ((SegmentFileStateHandle) stream).getFilePath().toString();
        }
        return ((FileStateHandle) stream).getFilePath().toString();
    }
}
