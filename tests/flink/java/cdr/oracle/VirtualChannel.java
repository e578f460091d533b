package cdr.oracle;

import java.io.IOException;
import java.util.List;
import java.util.Map;

import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.runtime.io.network.api.serialization.RecordDeserializer.DeserializationResult;
import org.apache.flink.runtime.io.network.api.serialization.SpillingAdaptiveSpanningRecordDeserializer;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.runtime.io.network.buffer.FreeingBufferRecycler;
import org.apache.flink.runtime.io.network.buffer.NetworkBuffer;
import org.apache.flink.runtime.plugable.NonReusingDeserializationDelegate;
import org.apache.flink.streaming.runtime.streamrecord.StreamElement;
import org.apache.flink.streaming.runtime.streamrecord.StreamElementSerializer;

/** The buffers between two subtasks, given to Flink's own deserializer in the order a restored job would. */
final class VirtualChannel {
    List<byte[]> input = List.of();
    List<byte[]> output = List.of();
    private final Oracle.Exchange exchange;
    private final int up;
    private final int down;
    private int position;
    /** Where the element that is not complete yet began; null between two elements. */
    private String begun;

    VirtualChannel(Oracle.Exchange exchange, int up, int down) {
        this.exchange = exchange;
        this.up = up;
        this.down = down;
    }

    void write(Lines lines, Totals totals) throws IOException {
        Elements elements = new Elements(exchange.record);
        NonReusingDeserializationDelegate<StreamElement> next =
                new NonReusingDeserializationDelegate<>(new StreamElementSerializer<>(elements.serializer()));
        SpillingAdaptiveSpanningRecordDeserializer<NonReusingDeserializationDelegate<StreamElement>> records =
                new SpillingAdaptiveSpanningRecordDeserializer<>(new String[] {System.getProperty("java.io.tmpdir")});
        for (String from : new String[] {"input", "output"}) {
            for (byte[] chunk : from.equals("input") ? input : output) {
                if (chunk.length == 0) {
                    continue;
                }
                records.setNextBuffer(new NetworkBuffer(MemorySegmentFactory.wrap(chunk),
                        FreeingBufferRecycler.INSTANCE, Buffer.DataType.DATA_BUFFER, chunk.length));
                DeserializationResult result;
                do {
                    result = records.getNextRecord(next);
                    if (result.isFullRecord()) {
                        element(elements.describe(next.getInstance()), from, lines, totals);
                    } else if (result == DeserializationResult.PARTIAL_RECORD && begun == null) {
                        begun = from;
                    }
                } while (!result.isBufferConsumed());
            }
        }
        records.clear();
        totals.add(input, output);
        lines.add("type", "channel", "gate", exchange.gate, "up", up, "down", down,
                "input_buffers", input.size(), "input_bytes", Totals.bytes(input),
                "output_buffers", output.size(), "output_bytes", Totals.bytes(output),
                "elements", position, "partial_left_over", begun != null);
    }

    private void element(Map<String, Object> description, String end, Lines lines, Totals totals) throws IOException {
        String from = begun == null || begun.equals(end) ? end : begun + "+" + end;
        begun = null;
        Map<String, Object> line = Lines.object("type", "element", "gate", exchange.gate, "up", up, "down", down,
                "pos", position++, "from", from);
        line.putAll(description);
        lines.add(line);
        totals.count((String) description.get("kind"), from);
    }
}
