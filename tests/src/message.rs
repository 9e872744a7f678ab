//! Messages that show whether they arrived whole.

/// Bytes before the pattern: the number of the sender and that of the message.
pub const HEADER: usize = 12;

/// Writes message `number` of `sender`, as long as `out`, which holds at least the header.
pub fn write(out: &mut [u8], sender: u32, number: u64) {
    out[..4].copy_from_slice(&sender.to_le_bytes());
    out[4..HEADER].copy_from_slice(&number.to_le_bytes());
    let seed = seed(sender, number, out.len());
    for (at, byte) in out[HEADER..].iter_mut().enumerate() {
        *byte = pattern(seed, at);
    }
}

/// Returns sender and number of a message, and checks every byte of it.
pub fn read(message: &[u8]) -> (u32, u64) {
    assert!(message.len() >= HEADER, "a message of {} bytes has no header", message.len());
    let sender = u32::from_le_bytes(message[..4].try_into().unwrap());
    let number = u64::from_le_bytes(message[4..HEADER].try_into().unwrap());
    let seed = seed(sender, number, message.len());
    for (at, &byte) in message[HEADER..].iter().enumerate() {
        assert_eq!(
            byte,
            pattern(seed, at),
            "byte {at} after the header of message {number} of sender {sender}, {} bytes long",
            message.len()
        );
    }
    (sender, number)
}

fn seed(sender: u32, number: u64, len: usize) -> u64 {
    let mix = |seed: u64, value: u64| (seed ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    mix(mix(mix(0, sender.into()), number), len as u64)
}

/// Neighbouring bytes differ, and so do the same bytes of neighbouring messages.
fn pattern(seed: u64, at: usize) -> u8 {
    (seed.wrapping_add((at as u64).wrapping_mul(0x2545_f491_4f6c_dd1d)) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_back() {
        let mut bytes = [0; 100];
        write(&mut bytes, 7, 1 << 33);
        assert_eq!(read(&bytes), (7, 1 << 33));
        write(&mut bytes[..HEADER], 1, 2);
        assert_eq!(read(&bytes[..HEADER]), (1, 2));
    }

    #[test]
    fn any_changed_byte_and_a_wrong_length_are_seen() {
        let mut whole = [0; 64];
        write(&mut whole, 3, 4);
        for at in 0..whole.len() {
            let mut bytes = whole;
            bytes[at] ^= 1;
            assert!(std::panic::catch_unwind(|| read(&bytes)).is_err(), "byte {at}");
        }
        assert!(std::panic::catch_unwind(|| read(&whole[..63])).is_err());
    }
}
