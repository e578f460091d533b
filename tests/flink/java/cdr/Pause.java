package cdr;

import java.io.Serializable;

/** Time to be taken over each record. */
final class Pause implements Serializable {
    private final long micros;
    private long debt;

    Pause(long micros) {
        this.micros = micros;
    }

    void take() {
        debt += micros;
        if (debt >= 1000) { // a sleep is never as short as a microsecond
            try {
                Thread.sleep(debt / 1000);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            debt %= 1000;
        }
    }
}
