//! PCI configuration space of the function: a virtual function of a ConnectX-5.

use super::irqs::VECTORS;

/// Bytes of the extended configuration space.
pub const SIZE: usize = 4096;

const VENDOR: u16 = 0x15b3;
const DEVICE: u16 = 0x1018;

const COMMAND: usize = 0x04;
// Memory space, bus master, parity error response, SERR#, INTx disable.
const COMMAND_WRITABLE: u16 = 0x0546;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const BAR0: usize = 0x10;
// 64-bit, prefetchable.
const BAR_KIND: u32 = 0xc;

const EXPRESS: usize = 0x60;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const LINK_CONTROL: usize = EXPRESS + 0x10;
const START_FUNCTION_RESET: u16 = 1 << 15;
// 512 bytes of payload, extended tags, function level reset.
const DEVICE_CAPABILITIES: u32 = 0x1000_8fc2;
// 8 lanes of 8 GT/s.
const LINK_CAPABILITIES: u32 = 0x83;

const MSIX: usize = 0x9c;
const MSIX_CONTROL: usize = MSIX + 2;
const MSIX_WRITABLE: u16 = 0xc000;
/// Offset of the table of MSI-X vectors in BAR 0; the client keeps it.
const MSIX_TABLE: u32 = 0x2000;
/// Offset of the pending bits.
const MSIX_PENDING: u32 = 0x3000;

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Nothing besides the bytes has changed.
    Stored,
    /// The function must be reset.
    Reset,
}

/// The configuration space.
#[derive(Debug)]
pub struct ConfigSpace {
    bytes: [u8; SIZE],
}

impl ConfigSpace {
    /// Returns the space after a reset.
    pub fn new() -> Self {
        let mut bytes = [0; SIZE];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &VENDOR.to_le_bytes());
        put(2, &DEVICE.to_le_bytes());
        put(6, &STATUS_CAPABILITIES.to_le_bytes());
        // Class: InfiniBand controller.
        put(9, &[0, 7, 2]);
        put(BAR0, &BAR_KIND.to_le_bytes());
        put(0x2c, &VENDOR.to_le_bytes());
        put(0x2e, &1u16.to_le_bytes());
        put(0x34, &[EXPRESS as u8]);
        // Version 2, endpoint.
        put(EXPRESS, &[0x10, MSIX as u8, 2, 0]);
        put(EXPRESS + 4, &DEVICE_CAPABILITIES.to_le_bytes());
        put(DEVICE_CONTROL, &0x2810u16.to_le_bytes());
        put(EXPRESS + 0xc, &LINK_CAPABILITIES.to_le_bytes());
        put(EXPRESS + 0x12, &0x1083u16.to_le_bytes());
        put(MSIX, &[0x11, 0]);
        put(MSIX_CONTROL, &(VECTORS as u16 - 1).to_le_bytes());
        put(MSIX + 4, &MSIX_TABLE.to_le_bytes());
        put(MSIX + 8, &MSIX_PENDING.to_le_bytes());
        Self { bytes }
    }

    /// Returns the bytes of a range, or `None` if it is not inside the space.
    pub fn read(&self, offset: u64, count: u32) -> Option<&[u8]> {
        let end = offset.checked_add(count.into())?;
        self.bytes.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
    }

    /// Writes the bits that may be written. Returns `None` for a range that is not inside the space.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Option<Written> {
        self.read(offset, u32::try_from(data.len()).ok()?)?;
        let mut written = Written::Stored;
        for (at, byte) in (offset as usize..).zip(data) {
            let mask = writable(at);
            self.bytes[at] = self.bytes[at] & !mask | byte & mask;
        }
        let control = [self.bytes[DEVICE_CONTROL], self.bytes[DEVICE_CONTROL + 1]];
        if u16::from_le_bytes(control) & START_FUNCTION_RESET != 0 {
            written = Written::Reset;
            *self = Self::new();
        }
        Some(written)
    }
}

/// Returns the bits of a byte that may be written. The addresses of the BARs belong to the client.
fn writable(at: usize) -> u8 {
    let of =
        |register: usize, mask: u16| at.checked_sub(register).and_then(|byte| mask.to_le_bytes().get(byte).copied());
    let registers = [
        of(COMMAND, COMMAND_WRITABLE),
        of(BAR0, 0),
        // Cache line size, interrupt line.
        of(0x0c, 0x00ff),
        of(0x3c, 0x00ff),
        of(DEVICE_CONTROL, 0xffff),
        of(LINK_CONTROL, 0x01c3),
        of(MSIX_CONTROL, MSIX_WRITABLE),
    ];
    registers.into_iter().flatten().fold(0, |all, mask| all | mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(space: &ConfigSpace, at: u64) -> u16 {
        u16::from_le_bytes(space.read(at, 2).unwrap().try_into().unwrap())
    }

    #[test]
    fn a_driver_finds_the_device_and_its_capabilities() {
        let space = ConfigSpace::new();
        assert_eq!(space.read(0, 4).unwrap(), [0xb3, 0x15, 0x18, 0x10]);
        assert_eq!(space.read(8, 4).unwrap(), [0, 0, 7, 2]);
        assert_eq!(word(&space, 6) & STATUS_CAPABILITIES, STATUS_CAPABILITIES);
        let (mut at, mut found) = (space.read(0x34, 1).unwrap()[0], Vec::new());
        while at != 0 {
            let capability = space.read(at.into(), 2).unwrap();
            found.push(capability[0]);
            at = capability[1];
        }
        assert_eq!(found, [0x10, 0x11]);
        assert_eq!(u32::from(word(&space, 0x9e)) & 0x7ff, VECTORS - 1);
        assert_eq!(space.read(0xa0, 8).unwrap(), [0, 0x20, 0, 0, 0, 0x30, 0, 0]);
        // No extended capabilities.
        assert_eq!(space.read(0x100, 4).unwrap(), [0; 4]);
    }

    #[test]
    fn only_control_bits_are_writable() {
        let mut space = ConfigSpace::new();
        let before = space.bytes;
        assert_eq!(space.write(0, &[0xff; 0x68]), Some(Written::Stored));
        assert_eq!(word(&space, 4), COMMAND_WRITABLE);
        assert_eq!(space.read(0, 4).unwrap(), &before[..4]);
        assert_eq!(space.read(0x10, 8).unwrap(), &before[0x10..0x18]);
        assert_eq!(space.read(0x60, 8).unwrap(), &before[0x60..0x68]);
        assert_eq!(space.write(0x9e, &[0xff, 0xff]), Some(Written::Stored));
        assert_eq!(word(&space, 0x9e), 0xc000 | (VECTORS as u16 - 1));
    }

    #[test]
    fn a_function_level_reset() {
        let mut space = ConfigSpace::new();
        space.write(4, &[6, 0]);
        assert_eq!(space.write(0x68, &[0x10, 0xa8]), Some(Written::Reset));
        assert_eq!((word(&space, 4), word(&space, 0x68)), (0, 0x2810));
    }

    #[test]
    fn ranges_beyond_the_space() {
        let mut space = ConfigSpace::new();
        assert!(space.read(4092, 4).is_some());
        assert!(space.read(4093, 4).is_none());
        assert!(space.read(u64::MAX, 4).is_none());
        assert!(space.write(4095, &[0, 0]).is_none());
        assert!(space.write(u64::MAX, &[0]).is_none());
    }
}
