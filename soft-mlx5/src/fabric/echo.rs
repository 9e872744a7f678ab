//! Echoes: how a device learns that another device has taken all packets that were sent to it.
//!
//! A peer that gets no processor answers as little as a peer that does not exist, and an adapter's timer cannot
//! tell them apart, because an adapter always has its own processor. So a device whose timer expires asks first: the
//! peer returns the echo after it has taken all packets that came before it, and owes the queue pair no answer. No
//! fault touches an echo, no capture contains it, and it passes a port that is down.

use super::packet::{Frame, MIN_FRAME};

// Value of the link next header that no packet has (raw IPv6).
const LNH_ECHO: u8 = 1;

/// An echo, or its return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// LID of the sender.
    pub slid: u16,
    /// LID of the receiver.
    pub dlid: u16,
    /// The ping is on its way back.
    pub returned: bool,
    /// Queue pair that asks.
    pub queue_pair: u32,
    /// Its peer.
    pub peer: u32,
    /// Number that its sender gave it.
    pub token: u32,
}

impl Echo {
    /// Returns the echo on its way back.
    pub fn back(self) -> Self {
        Self { slid: self.dlid, dlid: self.slid, returned: true, ..self }
    }

    /// Writes it to a frame.
    pub fn write(&self, frame: &mut Frame) {
        let mut bytes = [0; MIN_FRAME];
        bytes[1] = LNH_ECHO;
        bytes[2..4].copy_from_slice(&self.dlid.to_be_bytes());
        bytes[4..6].copy_from_slice(&((MIN_FRAME / 4) as u16).to_be_bytes());
        bytes[6..8].copy_from_slice(&self.slid.to_be_bytes());
        bytes[8..12].copy_from_slice(&(u32::from(self.returned) << 24 | self.peer & 0xff_ffff).to_be_bytes());
        bytes[12..16].copy_from_slice(&self.queue_pair.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.token.to_be_bytes());
        frame.fill(&bytes).expect("the smallest frame fits");
    }

    /// Reads the bytes of a frame; returns `None` if it is another frame.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MIN_FRAME] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|index| bytes[at + index]));
        (bytes[1] == LNH_ECHO).then(|| Self {
            slid: u16::from_be_bytes([bytes[6], bytes[7]]),
            dlid: u16::from_be_bytes([bytes[2], bytes[3]]),
            returned: bytes[8] != 0,
            queue_pair: word(12),
            peer: word(8) & 0xff_ffff,
            token: word(16),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::{Packet, ParseError, check_icrc, frame_len};
    use super::*;

    #[test]
    fn an_echo_is_a_frame_and_no_packet() {
        let echo =
            Echo { slid: 0x102, dlid: 3, returned: false, queue_pair: 0x41, peer: 0xff_ff42, token: 0xffff_ff01 };
        let mut frame = Frame::default();
        echo.write(&mut frame);
        frame.seal();
        assert_eq!(frame_len(frame.bytes()), Ok(frame.bytes().len()));
        assert_eq!(check_icrc(frame.bytes()), Ok(()));
        assert_eq!((frame.slid(), frame.dlid(), frame.is_ethernet()), (0x102, 3, false));
        assert_eq!(Packet::parse(frame.bytes()).err(), Some(ParseError::Version));
        assert_eq!(Echo::parse(frame.bytes()), Some(echo));
        let back = Echo { slid: 3, dlid: 0x102, returned: true, ..echo };
        assert_eq!(echo.back(), back);
        back.write(&mut frame);
        assert_eq!(Echo::parse(frame.bytes()), Some(back));
        frame.wrap_ethernet(1, 2, &[0; 60], 0);
        assert_eq!(Echo::parse(frame.bytes()), None);
    }
}
