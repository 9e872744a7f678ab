//! The first pages of BAR 0: version, command queue, health and clock.

/// Bytes of the init segment.
#[cfg(test)]
const SIZE: u64 = 0x2010;
/// log2 of the number of command queue entries.
pub const LOG_ENTRIES: u32 = 5;
const LOG_STRIDE: u32 = 6;

const COMMAND_INTERFACE: u32 = 5;

const COMMAND_QUEUE_HIGH: u64 = 0x10;
const COMMAND_QUEUE_LOW: u64 = 0x14;
const COMMAND_DOORBELL: u64 = 0x18;
const HEALTH_FIRMWARE: u64 = 0x230;
const HEALTH_SEVERITY: u64 = 0x238;
const HEALTH_SYNDROME: u64 = 0x23c;
const TIMER_HIGH: u64 = 0x1000;
const TIMER_LOW: u64 = 0x1004;
const HEALTH_COUNTER: u64 = 0x1010;
const PAGE_BITS: u32 = !0xfff;
const INTERFACE_STATE: u32 = 0x700;
/// State of the interface of a function whose firmware executes no command.
const INTERFACE_DISABLED: u32 = 0x100;
/// The firmware asks for a reset (`rfr`).
const REQUESTS_RESET: u32 = 1 << 31;
/// Firmware internal error.
const SYNDROME: u32 = 1 << 16;

/// The driver reads a counter of health every two seconds and expects another value each time.
const HEALTH_TICK_NS: u64 = 10_000_000;

/// Effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commands {
    /// Address of the command queue.
    pub queue: u64,
    /// Entries that the driver posted.
    pub slots: u32,
}

/// The init segment.
#[derive(Debug, Default)]
pub struct InitSegment {
    high: u32,
    low: u32,
    state: u32,
    // The firmware has failed and was not started again since.
    failed: bool,
}

impl InitSegment {
    /// Returns the segment after a reset. The driver of Linux is not told of a reset: it finds the interface disabled
    /// when it looks at the health of the function, and recovers. A driver that starts writes the address of its
    /// command queue, which enables the interface.
    pub fn after_reset() -> Self {
        Self { state: INTERFACE_DISABLED, ..Self::default() }
    }

    /// Stops the firmware with an error.
    pub fn fail(&mut self) {
        *self = Self { failed: true, ..Self::after_reset() };
    }

    /// Reads bytes at time `now`. Bytes beyond the segment are zero.
    pub fn read(&self, offset: u64, bytes: &mut [u8], now: u64) {
        for (at, byte) in (offset..).zip(bytes) {
            *byte = self.word(at & !3, now).to_be_bytes()[at as usize & 3];
        }
    }

    fn word(&self, offset: u64, now: u64) -> u32 {
        let [major, minor, subminor] = crate::commands::Commands::VERSION.map(u32::from);
        match offset {
            0 => minor << 16 | major,
            4 => COMMAND_INTERFACE << 16 | subminor,
            COMMAND_QUEUE_HIGH => self.high,
            COMMAND_QUEUE_LOW => self.low | self.state | LOG_ENTRIES << 4 | LOG_STRIDE,
            HEALTH_FIRMWARE => major << 24 | minor << 16 | subminor,
            HEALTH_SEVERITY if self.failed => REQUESTS_RESET,
            HEALTH_SYNDROME if self.failed => SYNDROME,
            TIMER_HIGH => (now >> 32) as u32,
            TIMER_LOW => now as u32,
            HEALTH_COUNTER => (now / HEALTH_TICK_NS) as u32 + 1,
            _ => 0,
        }
    }

    /// Writes registers, which are words. Returns the commands that the driver posts with the write.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<Commands> {
        let mut commands = None;
        for (at, word) in (offset..).step_by(4).zip(bytes.chunks_exact(4)) {
            let word = word.try_into().map(u32::from_be_bytes).unwrap_or(0);
            match at {
                COMMAND_QUEUE_HIGH => self.high = word,
                COMMAND_QUEUE_LOW => {
                    // A driver that changes the state of the interface alone may leave the address out.
                    if word & PAGE_BITS != 0 {
                        self.low = word & PAGE_BITS;
                    }
                    self.state = word & INTERFACE_STATE;
                    self.failed = false;
                }
                // The doorbell of a driver that does not know yet that its queue is gone.
                COMMAND_DOORBELL if self.state == INTERFACE_DISABLED => {}
                COMMAND_DOORBELL => {
                    let queue = u64::from(self.high) << 32 | u64::from(self.low);
                    commands = Some(Commands { queue, slots: word });
                }
                _ => {}
            }
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(segment: &InitSegment, offset: u64, now: u64) -> u32 {
        let mut bytes = [0; 4];
        segment.read(offset, &mut bytes, now);
        u32::from_be_bytes(bytes)
    }

    #[test]
    fn what_a_driver_reads_at_its_start() {
        let segment = InitSegment::default();
        assert_eq!(word(&segment, 0, 0), 35 << 16 | 16);
        assert_eq!(word(&segment, 4, 0), 5 << 16 | 2000);
        // 32 entries of 64 bytes, interface enabled.
        assert_eq!(word(&segment, 0x14, 0), 0x56);
        assert_eq!(word(&segment, 0x1fc, 0), 0, "initialized");
        assert_eq!(word(&segment, 0x230, 0), 16 << 24 | 35 << 16 | 2000);
        assert_eq!(word(&segment, 0x238, 0), 0, "no fatal sensor");
        assert_eq!(word(&segment, 0xff8, 0), 0, "default time-outs");
        let mut byte = [1];
        segment.read(0x231, &mut byte, 0);
        assert_eq!(byte, [35]);
        segment.read(SIZE - 1, &mut byte, 0);
        assert_eq!(byte, [0]);
    }

    #[test]
    fn health_and_clock_move_on() {
        let segment = InitSegment::default();
        assert_ne!(word(&segment, 0x1010, 0), 0);
        assert_ne!(word(&segment, 0x1010, 0), word(&segment, 0x1010, HEALTH_TICK_NS));
        let now = 0x12_3456_789a;
        assert_eq!((word(&segment, 0x1000, now), word(&segment, 0x1004, now)), (0x12, 0x3456_789a));
    }

    #[test]
    fn a_command_queue_and_its_doorbell() {
        let mut segment = InitSegment::default();
        assert_eq!(segment.write(0x10, &[0, 0, 0, 1]), None);
        assert_eq!(segment.write(0x14, &0x2345_6000u32.to_be_bytes()), None);
        let posted = Commands { queue: 0x1_2345_6000, slots: 0x8000_0001 };
        assert_eq!(segment.write(0x18, &[0x80, 0, 0, 1]), Some(posted));
        assert_eq!(word(&segment, 0x14, 0), 0x2345_6056);
        // The state of the interface, without an address.
        assert_eq!(segment.write(0x14, &0x100u32.to_be_bytes()), None);
        assert_eq!(word(&segment, 0x14, 0), 0x2345_6156);
        // Both halves of the address in one write, and parts of words, which are no registers.
        assert_eq!(segment.write(0x10, &[0, 0, 0, 2, 0, 0, 0x10, 0]), None);
        assert_eq!(segment.write(0x18, &[0, 0, 0]), None);
        assert_eq!(segment.write(0x19, &[0, 0, 0, 1]), None);
        assert_eq!(segment.write(0x18, &[0, 0, 0, 1]).map(|posted| posted.queue), Some(0x2_0000_1000));
    }

    #[test]
    fn a_reset_disables_the_interface_until_a_driver_starts() {
        let mut segment = InitSegment::after_reset();
        assert_eq!(word(&segment, 0x14, 0) & 0x700, 0x100);
        assert_eq!(word(&segment, 0x238, 0), 0, "a reset is no error of the firmware");
        // The driver does not know yet, and then starts.
        assert_eq!(segment.write(0x18, &[0, 0, 0, 1]), None);
        segment.write(0x14, &0x2345_6000u32.to_be_bytes());
        assert_eq!(word(&segment, 0x14, 0), 0x2345_6056);
        assert!(segment.write(0x18, &[0, 0, 0, 1]).is_some());
    }

    #[test]
    fn firmware_that_fails_asks_for_a_reset() {
        let mut segment = InitSegment::default();
        segment.write(0x14, &0x2345_6000u32.to_be_bytes());
        segment.fail();
        let bytes = |segment: &InitSegment| {
            let mut bytes = [0; 2];
            segment.read(0x238, &mut bytes[..1], 0);
            segment.read(0x23d, &mut bytes[1..], 0);
            bytes
        };
        assert_eq!(bytes(&segment), [0x80, 1], "severity and syndrome");
        assert_eq!(word(&segment, 0x14, 0) & 0x700, 0x100);
        assert_eq!(segment.write(0x18, &[0, 0, 0, 1]), None);
        segment.write(0x14, &0x2345_6000u32.to_be_bytes());
        assert_eq!(bytes(&segment), [0, 0]);
        assert!(segment.write(0x18, &[0, 0, 0, 1]).is_some());
    }
}
