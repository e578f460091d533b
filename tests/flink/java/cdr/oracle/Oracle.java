package cdr.oracle;

import java.io.DataInputStream;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.flink.runtime.checkpoint.Checkpoints;
import org.apache.flink.runtime.checkpoint.OperatorState;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.runtime.checkpoint.channel.Chunks;
import org.apache.flink.runtime.checkpoint.metadata.CheckpointMetadata;
import org.apache.flink.runtime.state.ChannelStateHelper;
import org.apache.flink.runtime.state.InputChannelStateHandle;
import org.apache.flink.runtime.state.ResultSubpartitionStateHandle;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Writes down what Flink's own classes read in a checkpoint: first its metadata, then every element in flight.
 * Arguments: the checkpoint's directory, a JSON file that lists the exchanges, the file to write.
 */
public final class Oracle {
    private final CheckpointMetadata metadata;
    private final Lines lines;

    private Oracle(CheckpointMetadata metadata, Lines lines) {
        this.metadata = metadata;
        this.lines = lines;
    }

    /** One exchange, as the job spec has it, with operators by their ids. */
    public static final class Exchange {
        public String upstream;
        public int partition;
        public String downstream;
        public int gate;
        public String record;
    }

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        Exchange[] exchanges = new ObjectMapper().readValue(new File(arguments[1]), Exchange[].class);
        int version;
        CheckpointMetadata metadata;
        try (DataInputStream stream = new DataInputStream(Files.newInputStream(directory.resolve("_metadata")))) {
            stream.readInt();
            version = stream.readInt();
        }
        try (DataInputStream stream = new DataInputStream(Files.newInputStream(directory.resolve("_metadata")))) {
            metadata = Checkpoints.loadCheckpointMetadata(stream, Oracle.class.getClassLoader(), directory.toString());
        }
        try (Lines lines = new Lines(arguments[2])) {
            lines.add("type", "checkpoint", "version", version, "id", metadata.getCheckpointId(),
                    "properties", String.valueOf(metadata.getCheckpointProperties()));
            new Handles(lines).write(metadata);
            new Oracle(metadata, lines).elements(exchanges);
        }
        System.exit(0);
    }

    private void elements(Exchange[] exchanges) throws IOException {
        Totals totals = new Totals();
        for (Exchange exchange : exchanges) {
            for (VirtualChannel channel : channels(exchange)) {
                channel.write(lines, totals);
            }
        }
        lines.add(totals.summary());
    }

    /** Those with state on either side, ordered by downstream and upstream subtask. */
    private List<VirtualChannel> channels(Exchange exchange) throws IOException {
        Map<Integer, Map<Integer, VirtualChannel>> found = new TreeMap<>();
        for (OperatorSubtaskState state : subtasks(exchange.downstream)) {
            for (InputChannelStateHandle handle : ChannelStateHelper.extractUnmergedInputHandles(state)) {
                if (handle.getInfo().getGateIdx() == exchange.gate) {
                    channel(found, exchange, handle.getInfo().getInputChannelIdx(), handle.getSubtaskIndex())
                            .input = Chunks.read(handle);
                }
            }
        }
        for (OperatorSubtaskState state : subtasks(exchange.upstream)) {
            for (ResultSubpartitionStateHandle handle : ChannelStateHelper.extractUnmergedOutputHandles(state)) {
                if (handle.getInfo().getPartitionIdx() == exchange.partition) {
                    channel(found, exchange, handle.getSubtaskIndex(), handle.getInfo().getSubPartitionIdx())
                            .output = Chunks.read(handle);
                }
            }
        }
        List<VirtualChannel> inOrder = new ArrayList<>();
        found.values().forEach(ofOne -> inOrder.addAll(ofOne.values()));
        return inOrder;
    }

    private static VirtualChannel channel(
            Map<Integer, Map<Integer, VirtualChannel>> found, Exchange exchange, int up, int down) {
        return found.computeIfAbsent(down, none -> new TreeMap<>())
                .computeIfAbsent(up, none -> new VirtualChannel(exchange, up, down));
    }

    private Iterable<OperatorSubtaskState> subtasks(String operator) {
        for (OperatorState state : metadata.getOperatorStates()) {
            if (state.getOperatorID().toHexString().equals(operator)) {
                return state.getStates();
            }
        }
        return List.of(); // an operator without any state is not in the metadata
    }
}
