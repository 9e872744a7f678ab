//! Messages of the vfio-user protocol: little-endian, a header of 16 bytes and a payload.
//!
//! Parsing checks the form alone: whether a region or a range exists is for the device to say.

/// Bytes of the header of each message.
pub const HEADER: usize = 16;
/// Longest access to a region that one message may carry, as the VERSION reply says.
pub const MAX_TRANSFER: u32 = 1 << 20;
/// Longest message: an access with its header, and what other commands put before data.
const MAX_MESSAGE: u32 = MAX_TRANSFER + 4096;

const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// The error number in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The message has a form that the protocol does not have.
pub const EINVAL: Errno = Errno(libc::EINVAL);
/// The command is not supported.
pub const ENOTSUP: Errno = Errno(libc::EOPNOTSUPP);

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number that the reply repeats.
    pub id: u16,
    /// Command.
    pub command: u16,
    size: u32,
    flags: u32,
}

impl Header {
    /// Reads a header. The error is for the connection: its next byte has no meaning.
    pub fn parse(bytes: &[u8; HEADER]) -> Result<Self, Errno> {
        let mut fields = Fields(bytes);
        let header = Self { id: fields.u16()?, command: fields.u16()?, size: fields.u32()?, flags: fields.u32()? };
        let fits = (HEADER as u32..=MAX_MESSAGE).contains(&header.size);
        if fits && header.flags & TYPE == 0 { Ok(header) } else { Err(EINVAL) }
    }

    /// Returns the length of the payload.
    pub fn payload(&self) -> usize {
        self.size as usize - HEADER
    }

    /// Returns `true` if the sender waits for a reply.
    pub fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }

    /// Returns the reply to the request: its payload, or an error number.
    pub fn reply(&self, result: Result<&[u8], Errno>) -> Vec<u8> {
        let (payload, flags, errno) = match result {
            Ok(payload) => (payload, REPLY, 0),
            Err(Errno(number)) => (&[][..], REPLY | ERROR, number as u32),
        };
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.command.to_le_bytes());
        bytes.extend(((HEADER + payload.len()) as u32).to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(errno.to_le_bytes());
        bytes.extend(payload);
        bytes
    }
}

/// Effect of SET_IRQS on the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IrqAction {
    /// Gives each vector the eventfd with its number among the descriptors of the message, or none.
    SetEventfds,
    /// Raises the vectors now; no vector at all means that all lose their eventfds.
    Trigger,
}

/// A request of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// First message: version of the protocol, and capabilities in JSON.
    Version {
        /// Major version.
        major: u16,
    },
    /// Memory of the guest for DMA; a descriptor comes with it if the memory can be mapped.
    DmaMap {
        /// The device may write.
        writable: bool,
        /// Offset in the file of the descriptor.
        offset: u64,
        /// Address by which the guest names it.
        address: u64,
        /// Length.
        size: u64,
    },
    /// Memory of the guest is DMA memory no more.
    DmaUnmap {
        /// All of it.
        all: bool,
        /// Address.
        address: u64,
        /// Length.
        size: u64,
    },
    /// Number of regions and interrupts.
    DeviceInfo,
    /// Size and rights of a region.
    RegionInfo {
        /// Bytes for the answer.
        argsz: u32,
        /// Region.
        index: u32,
    },
    /// Number of vectors of a kind of interrupt.
    IrqInfo {
        /// Kind.
        index: u32,
    },
    /// Sets eventfds, or raises interrupts.
    SetIrqs {
        /// Effect on the vectors.
        action: IrqAction,
        /// Kind.
        index: u32,
        /// First vector.
        start: u32,
        /// Number of vectors.
        count: u32,
    },
    /// Reads from a region.
    RegionRead {
        /// Region.
        region: u32,
        /// Offset in the region.
        offset: u64,
        /// Bytes.
        count: u32,
    },
    /// Writes to a region.
    RegionWrite {
        /// Region.
        region: u32,
        /// Offset in the region.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Resets the device.
    Reset,
}

impl<'a> Request<'a> {
    /// Parses the payload of a command.
    pub fn parse(command: u16, payload: &'a [u8]) -> Result<Self, Errno> {
        let mut fields = Fields(payload);
        Ok(match command {
            1 => {
                let major = fields.u16()?;
                let _minor = fields.u16()?;
                Self::Version { major }
            }
            2 => {
                let (_argsz, flags) = (fields.u32()?, fields.u32()?);
                let (offset, address, size) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Self::DmaMap { writable: flags & 2 != 0, offset, address, size }
            }
            3 => {
                let (_argsz, flags) = (fields.u32()?, fields.u32()?);
                let (address, size) = (fields.u64()?, fields.u64()?);
                // Flag 1 asks for a bitmap of dirty pages, which only migration needs.
                match flags {
                    0 => Self::DmaUnmap { all: false, address, size },
                    2 => Self::DmaUnmap { all: true, address, size },
                    _ => return Err(EINVAL),
                }
            }
            4 => Self::DeviceInfo,
            5 => {
                let (argsz, _flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
                Self::RegionInfo { argsz, index }
            }
            7 => {
                let (_argsz, _flags, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
                Self::IrqInfo { index }
            }
            8 => {
                let (_argsz, flags) = (fields.u32()?, fields.u32()?);
                let (index, start, count) = (fields.u32()?, fields.u32()?, fields.u32()?);
                Self::SetIrqs { action: irq_action(flags)?, index, start, count }
            }
            9 => {
                let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
                if count > MAX_TRANSFER {
                    return Err(EINVAL);
                }
                Self::RegionRead { region, offset, count }
            }
            10 => {
                let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
                Self::RegionWrite { region, offset, data: fields.bytes(count as usize)? }
            }
            13 => Self::Reset,
            _ => return Err(ENOTSUP),
        })
    }
}

fn irq_action(flags: u32) -> Result<IrqAction, Errno> {
    const DATA_NONE: u32 = 1;
    const DATA_EVENTFD: u32 = 1 << 2;
    const TRIGGER: u32 = 1 << 5;
    match flags {
        _ if flags == DATA_EVENTFD | TRIGGER => Ok(IrqAction::SetEventfds),
        _ if flags == DATA_NONE | TRIGGER => Ok(IrqAction::Trigger),
        _ => Err(EINVAL),
    }
}

/// The fields of a payload that were not taken yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(EINVAL)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        self.bytes(N)?.try_into().map_err(|_| EINVAL)
    }

    fn u16(&mut self) -> Result<u16, Errno> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
