//! Opcodes of the base transport header.

/// Transport service of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Ethernet frames.
    Raw,
    /// Dynamically connected: reliable, and each request names its target. No specification says how its packets look:
    /// they are this device's own, in the class of the reliable datagrams that nobody built.
    Dc,
}

impl Service {
    /// Returns `true` if a queue pair of this service is connected to one peer, as long as it has requests to it.
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::Dc)
    }

    /// Returns `true` if each request is acknowledged.
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Dc)
    }
}

/// Operation of a packet, without the transport service (lower five bits of the opcode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // The names of the InfiniBand specification, table 38, say it all.
pub enum Operation {
    SendFirst = 0,
    SendMiddle = 1,
    SendLast = 2,
    SendLastImm = 3,
    SendOnly = 4,
    SendOnlyImm = 5,
    WriteFirst = 6,
    WriteMiddle = 7,
    WriteLast = 8,
    WriteLastImm = 9,
    WriteOnly = 10,
    WriteOnlyImm = 11,
    ReadRequest = 12,
    ReadResponseFirst = 13,
    ReadResponseMiddle = 14,
    ReadResponseLast = 15,
    ReadResponseOnly = 16,
    Acknowledge = 17,
    AtomicAcknowledge = 18,
    CompareSwap = 19,
    FetchAdd = 20,
    SendLastInv = 22,
    SendOnlyInv = 23,
}

use Operation::*;

const OPERATIONS: [Option<Operation>; 32] = {
    let mut all = [None; 32];
    let known = [
        SendFirst,
        SendMiddle,
        SendLast,
        SendLastImm,
        SendOnly,
        SendOnlyImm,
        WriteFirst,
        WriteMiddle,
        WriteLast,
        WriteLastImm,
        WriteOnly,
        WriteOnlyImm,
        ReadRequest,
        ReadResponseFirst,
        ReadResponseMiddle,
        ReadResponseLast,
        ReadResponseOnly,
        Acknowledge,
        AtomicAcknowledge,
        CompareSwap,
        FetchAdd,
        SendLastInv,
        SendOnlyInv,
    ];
    let mut i = 0;
    while i < known.len() {
        all[known[i] as usize] = Some(known[i]);
        i += 1;
    }
    all
};

impl Operation {
    /// Returns the service and the operation of an opcode byte, or `None` if no service defines it.
    pub fn decode(opcode: u8) -> Option<(Service, Self)> {
        let operation = OPERATIONS[(opcode & 0x1f) as usize]?;
        let service = match opcode >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Dc,
            3 => Service::Ud,
            _ => return None,
        };
        let defined = match service {
            Service::Rc | Service::Dc => true,
            Service::Uc => (operation as u8) <= WriteOnlyImm as u8,
            Service::Ud => matches!(operation, SendOnly | SendOnlyImm),
            Service::Raw => false,
        };
        defined.then_some((service, operation))
    }

    /// Returns the opcode byte.
    pub const fn encode(self, service: Service) -> u8 {
        self as u8
            | match service {
                Service::Rc => 0,
                Service::Uc => 1 << 5,
                Service::Dc => 2 << 5,
                Service::Ud => 3 << 5,
                // Frames have no transport header.
                Service::Raw => 7 << 5,
            }
    }

    /// Returns `true` if a responder sends it.
    pub const fn is_response(self) -> bool {
        self as u8 >= ReadResponseFirst as u8 && self as u8 <= AtomicAcknowledge as u8
    }

    /// Returns `true` if it carries an RDMA extended transport header.
    pub const fn has_reth(self) -> bool {
        matches!(self, WriteFirst | WriteOnly | WriteOnlyImm | ReadRequest)
    }

    /// Returns `true` if it carries an atomic extended transport header.
    pub const fn has_atomic_eth(self) -> bool {
        matches!(self, CompareSwap | FetchAdd)
    }

    /// Returns `true` if it carries an ACK extended transport header.
    pub const fn has_aeth(self) -> bool {
        matches!(self, ReadResponseFirst | ReadResponseLast | ReadResponseOnly | Acknowledge | AtomicAcknowledge)
    }

    /// Returns `true` if it carries immediate data.
    pub const fn has_immediate(self) -> bool {
        matches!(self, SendLastImm | SendOnlyImm | WriteLastImm | WriteOnlyImm)
    }

    /// Returns `true` if it carries a key to invalidate.
    pub const fn has_ieth(self) -> bool {
        matches!(self, SendLastInv | SendOnlyInv)
    }

    /// Returns `true` for the first packet of a SEND.
    pub const fn starts_send(self) -> bool {
        matches!(self, SendFirst | SendOnly | SendOnlyImm | SendOnlyInv)
    }

    /// Returns `true` for the first packet of an RDMA WRITE.
    pub const fn starts_write(self) -> bool {
        matches!(self, WriteFirst | WriteOnly | WriteOnlyImm)
    }

    /// Returns `true` for a later packet of a SEND.
    pub const fn continues_send(self) -> bool {
        matches!(self, SendMiddle | SendLast | SendLastImm | SendLastInv)
    }

    /// Returns `true` for a later packet of an RDMA WRITE.
    pub const fn continues_write(self) -> bool {
        matches!(self, WriteMiddle | WriteLast | WriteLastImm)
    }

    /// Returns `true` if more packets of the same message follow: the payload is a full MTU.
    pub const fn is_followed(self) -> bool {
        matches!(self, SendFirst | SendMiddle | WriteFirst | WriteMiddle | ReadResponseFirst | ReadResponseMiddle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_byte_decodes_to_itself_or_to_nothing() {
        let mut defined = 0;
        for byte in 0..=255 {
            if let Some((service, operation)) = Operation::decode(byte) {
                assert_eq!(operation.encode(service), byte);
                defined += 1;
            }
        }
        // 23 for RC and for DC, 12 for UC, 2 for UD.
        assert_eq!(defined, 60);
    }

    #[test]
    fn opcodes_of_the_specification() {
        assert_eq!(Operation::decode(0x11), Some((Service::Rc, Acknowledge)));
        assert_eq!(Operation::decode(0x2b), Some((Service::Uc, WriteOnlyImm)));
        assert_eq!(Operation::decode(0x64), Some((Service::Ud, SendOnly)));
        assert_eq!(Operation::decode(0x66), None);
        assert_eq!(Operation::decode(0x15), None);
    }
}
