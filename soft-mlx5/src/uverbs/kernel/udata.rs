//! Input and output areas of one command.

use super::abi::Abi;
use super::errno::EOPNOTSUPP;
use super::user;
use crate::objects::Result;

/// Bytes that a command reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Input {
    source: Source,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    // Up to eight bytes travel in the attribute itself.
    Inline([u8; 8]),
    User(u64),
}

impl Default for Source {
    fn default() -> Self {
        Self::Inline([0; 8])
    }
}

impl Input {
    /// Returns an input in the program's memory.
    pub fn user(addr: u64, len: usize) -> Self {
        Self { source: Source::User(addr), len }
    }

    /// Returns the input of an ioctl attribute: short input is the data word itself.
    pub fn attribute(data: u64, len: usize) -> Self {
        if len <= 8 { Self { source: Source::Inline(data.to_ne_bytes()), len } } else { Self::user(data, len) }
    }

    /// Returns the number of bytes given.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies the bytes from `from` to at most `to`.
    pub fn bytes(&self, from: usize, to: usize) -> Result<Vec<u8>> {
        let to = to.min(self.len);
        let from = from.min(to);
        match self.source {
            Source::Inline(data) => Ok(data[from..to].to_vec()),
            Source::User(addr) => {
                let mut bytes = vec![0; to - from];
                user::read(addr.wrapping_add(from as u64), &mut bytes)?;
                Ok(bytes)
            }
        }
    }

    /// Copies a structure. Missing bytes of a shorter input are zero, further bytes of a longer input are
    /// ignored.
    pub fn get<T: Abi>(&self) -> Result<T> {
        let mut bytes = self.bytes(0, T::SIZE)?;
        bytes.resize(T::SIZE, 0);
        Ok(T::get(&bytes))
    }

    /// Returns `true` if all bytes from `from` on are zero.
    pub fn is_zero_from(&self, from: usize) -> Result<bool> {
        let mut at = from;
        while at < self.len {
            let chunk = self.bytes(at, at + 4096)?;
            if chunk.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += chunk.len();
        }
        Ok(true)
    }

    /// Copies a core request. The further bytes of a longer request must be zero.
    pub fn request<T: Abi>(&self) -> Result<T> {
        if !self.is_zero_from(T::SIZE)? {
            return Err(EOPNOTSUPP);
        }
        self.get()
    }
}

/// Place that a command writes to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Output {
    /// Address in the program.
    pub addr: u64,
    /// Room in bytes.
    pub len: usize,
}

impl Output {
    /// Copies as many bytes as there is room for.
    pub fn put_bytes(&self, bytes: &[u8]) -> Result<()> {
        user::write(self.addr, &bytes[..bytes.len().min(self.len)])
    }

    /// Copies as much of a structure as there is room for.
    pub fn put<T: Abi>(&self, value: &T) -> Result<()> {
        self.put_bytes(&value.to_bytes())
    }

    /// Copies a core response: room beyond it is cleared.
    pub fn respond<T: Abi>(&self, value: &T) -> Result<()> {
        let mut bytes = value.to_bytes();
        bytes.resize(self.len, 0);
        self.put_bytes(&bytes)
    }
}

/// Both directions of one part of a command.
#[derive(Debug, Clone, Copy, Default)]
pub struct Udata {
    /// Input from the program.
    pub input: Input,
    /// Place of the answer.
    pub output: Output,
}

/// A command in its two parts: the core's and the driver's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request {
    /// Part of the uverbs core.
    pub core: Udata,
    /// Part of mlx5.
    pub driver: Udata,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_input_is_extended_with_zeros_and_long_input_must_be_zero() {
        let bytes = [7u8, 0, 0, 0, 9, 0, 0, 0];
        let given = |len| Input::user(bytes.as_ptr() as u64, len);
        assert_eq!(given(4).get::<u64>(), Ok(7));
        assert_eq!(given(8).request::<u32>(), Err(EOPNOTSUPP));
        assert_eq!(given(4).request::<u32>(), Ok(7));
        assert_eq!(Input::attribute(7, 4).get::<u32>(), Ok(7));
    }

    #[test]
    fn a_response_never_leaves_its_room() {
        let mut room = [0xaau8; 12];
        Output { addr: room.as_mut_ptr() as u64, len: 2 }.respond(&0x0403_0201u32).unwrap();
        let two = 0x0403_0201u32.to_ne_bytes();
        let out8 = Output { addr: room[4..].as_mut_ptr() as u64, len: 8 };
        assert_eq!(room[..4], [two[0], two[1], 0xaa, 0xaa]);
        out8.respond(&u32::MAX).unwrap();
        assert_eq!(room[4..], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    }
}
