package cdr;

import java.util.ArrayList;
import java.util.List;

import org.apache.flink.api.connector.source.lib.NumberSequenceSource;

/** The same numbers with one split per generator, the first ones short: who reads those is at the end before others. */
final class Uneven extends NumberSequenceSource {
    private final int generators;
    private final int ending;
    private final long records;
    private final long endingRecords;

    Uneven(Options options, long records) {
        super(0, options.generators * records - 1);
        this.generators = options.generators;
        this.ending = options.ending;
        this.records = records;
        this.endingRecords = options.endingRecords;
    }

    @Override
    protected List<NumberSequenceSplit> splitNumberRange(long from, long to, int readers) {
        List<NumberSequenceSplit> splits = new ArrayList<>();
        for (int generator = 0; generator < generators; generator++) {
            long first = generator * records;
            long count = generator < ending ? endingRecords : records;
            splits.add(new NumberSequenceSplit("generator-" + generator, first, first + count - 1));
        }
        return splits;
    }
}
