package cdr.shipped;

import java.util.Arrays;

/**
 * The content of record {@code sequence} of a generator in the checkpoints that were not made here: nothing but its
 * length is drawn, so whoever meets a record can check it.
 */
final class Contents {
    private static final String LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";

    private Contents() {}

    /** Also computed by harness/judge.py. */
    static long key(int generator, long sequence, int keys) {
        return Math.floorMod(mixed(generator * 1_000_003L + sequence), (long) keys);
    }

    static int length(int generator, long sequence, int shortest, int longest) {
        return shortest + (int) Math.floorMod(mixed(sequence * 31 + generator + 7), (long) (longest - shortest + 1));
    }

    static byte[] bytes(int generator, long sequence, int length) {
        byte[] content = new byte[length];
        long drawn = mixed(generator * 7_919_777L + sequence * 104_729L + 1);
        for (int at = 0; at < length; at++) {
            if (at % 8 == 0) {
                drawn = mixed(drawn + 0x9E3779B97F4A7C15L);
            }
            content[at] = (byte) (drawn >>> (at % 8 * 8));
        }
        return content;
    }

    /** Characters that take one, two and three bytes in Flink's encoding of strings. */
    static String text(int generator, long sequence, int length) {
        byte[] drawn = bytes(generator, sequence, length);
        char[] letters = new char[length];
        for (int at = 0; at < length; at++) {
            letters[at] = LETTERS.charAt(drawn[at] & 63);
        }
        if (length > 0 && sequence % 17 == 0) {
            letters[0] = '\u00e9';
        }
        if (length > 1 && sequence % 19 == 0) {
            letters[1] = '\u6f22';
        }
        return new String(letters);
    }

    static boolean intact(int generator, long sequence, Object content) {
        if (content instanceof byte[]) {
            byte[] found = (byte[]) content;
            return Arrays.equals(found, bytes(generator, sequence, found.length));
        }
        String found = (String) content;
        return found.equals(text(generator, sequence, found.length()));
    }

    private static long mixed(long value) {
        long one = (value ^ value >>> 33) * 0xff51afd7ed558ccdL;
        long two = (one ^ one >>> 33) * 0xc4ceb9fe1a85ec53L;
        return two ^ two >>> 33;
    }
}
