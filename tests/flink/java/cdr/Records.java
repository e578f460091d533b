package cdr;

import java.nio.charset.StandardCharsets;
import java.util.SplittableRandom;

/** The content of record {@code sequence} of a generator: always the same, so that whoever meets it can check it. */
final class Records {
    private static final String LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";

    private Records() {}

    /** Also computed by harness/judge.py. */
    static long key(int generator, long sequence, int keys) {
        return (generator * 7919L + sequence * 104729L) % keys;
    }

    static byte[] bytes(int generator, long sequence, Options options) {
        SplittableRandom random = new SplittableRandom(((long) generator << 40) ^ sequence);
        byte[] payload = new byte[random.nextInt(options.shortest, options.longest + 1)];
        for (int at = 0; at < payload.length; at++) {
            payload[at] = (byte) random.nextInt();
        }
        return payload;
    }

    /** Characters that take one, two and three bytes in Flink's encoding of strings, and some outside of the plane. */
    static String text(int generator, long sequence, Options options) {
        byte[] drawn = bytes(generator, sequence, options);
        byte[] letters = new byte[drawn.length];
        for (int at = 0; at < drawn.length; at++) {
            letters[at] = (byte) LETTERS.charAt(drawn[at] & 63);
        }
        String text = new String(letters, StandardCharsets.US_ASCII);
        if (sequence % 17 == 0) {
            text += "\u00e9";
        }
        if (sequence % 19 == 0) {
            text += "\u6f22";
        }
        return sequence % 23 == 0 ? text + new String(Character.toChars(0x1F600)) : text;
    }

    static Object payload(Class<?> kind, int generator, long sequence, Options options) {
        return kind == String.class ? text(generator, sequence, options) : bytes(generator, sequence, options);
    }
}
