package cdr.oracle;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Sums over all virtual channels. */
final class Totals {
    private final Map<String, Long> elements = new TreeMap<>();
    private int inputBuffers;
    private int outputBuffers;
    private long inputBytes;
    private long outputBytes;

    void add(List<byte[]> input, List<byte[]> output) {
        inputBuffers += input.size();
        outputBuffers += output.size();
        inputBytes += bytes(input);
        outputBytes += bytes(output);
    }

    void count(String kind, String from) {
        elements.merge(kind + "/" + from, 1L, Long::sum);
    }

    static long bytes(List<byte[]> chunks) {
        return chunks.stream().mapToLong(chunk -> chunk.length).sum();
    }

    Map<String, Object> summary() {
        return Lines.object("type", "summary", "input_buffers", inputBuffers, "output_buffers", outputBuffers,
                "input_bytes", inputBytes, "output_bytes", outputBytes, "elements", elements);
    }
}
