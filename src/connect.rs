//! Exchange of addresses with a peer, over any stream.
//!
//! Both sides do the same: write one frame of [`FRAME`] bytes, read the other's, connect, write one
//! byte that tells whether that worked, read the other's. Numbers are big-endian.
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | `doorbell` in ASCII |
//! | 8..10 | version, 1 |
//! | 10 | MTU: 1 for 256 bytes, doubling up to 5 for 4,096 |
//! | 11 | zero |
//! | 12..14 | LID |
//! | 14..16 | zero |
//! | 16..20 | number of the queue pair |
//! | 20..24 | first PSN |
//! | 24..40 | GID, or zeroes |
//! | 40 | 1: connected; 0: not |

use std::io::{self, Read, Write};

use rdma_core_sys as sys;

use crate::error::{Error, Result};
use crate::qp::{Mtu, QpAddress, QueuePair};

const MAGIC: [u8; 8] = *b"doorbell";
const VERSION: u16 = 1;
const FRAME: usize = 40;

const CONNECTED: u8 = 1;
const FAILED: u8 = 0;

impl QueuePair {
    /// Connects to the queue pair whose owner calls this at the other end of `stream`, and waits until it
    /// is connected too: from then on both can send.
    ///
    /// The stream has to take 41 bytes without the peer reading, as sockets and pipes do. A peer that
    /// never answers is waited for as long as the stream waits: set its time-outs. The stream can be
    /// used for anything else before and afterwards.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use std::net::{TcpListener, TcpStream};
    ///
    /// # use doorbell::{QpConfig, Receiver, ReceiverConfig};
    /// # let mut receiver = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// # let mut qp = receiver.create_qp(&QpConfig::rc())?;
    /// # let mut other = Receiver::new(&pd, &ReceiverConfig::new())?;
    /// # let mut peer = other.create_qp(&QpConfig::rc())?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// // The other side, here a thread.
    /// let side = std::thread::spawn(move || {
    ///     let mut stream = TcpStream::connect(address)?;
    ///     peer.connect_over(&mut stream)
    /// });
    /// qp.connect_over(&mut listener.accept()?.0)?;
    /// side.join().expect("no panic")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Handshake`] when the peer sends something else, leaves, or cannot connect;
    /// [`Error::Io`] when the stream fails; those of [`connect`](Self::connect).
    pub fn connect_over<S: Read + Write>(&mut self, stream: &mut S) -> Result<()> {
        exchange(stream, &[self.address()?], |[peer]| self.connect(&peer))
    }
}

/// Tells the peer the addresses of `N` queue pairs, and connects to those that it tells.
pub(crate) fn exchange<const N: usize, S: Read + Write>(
    stream: &mut S,
    addresses: &[QpAddress; N],
    connect: impl FnOnce([QpAddress; N]) -> Result<()>,
) -> Result<()> {
    for address in addresses {
        stream.write_all(&encode(address))?;
    }
    stream.flush()?;
    let connected = read_addresses(stream).and_then(connect);
    // The peer waits for it in either case. That it cannot be told is the lesser of two errors.
    let told = stream.write_all(&[if connected.is_ok() { CONNECTED } else { FAILED }]);
    let told = told.and_then(|()| stream.flush());
    connected?;
    told?;
    match read(stream)? {
        [CONNECTED] => Ok(()),
        [FAILED] => {
            Err(handshake("it could not connect its side, which has an error that says why"))
        }
        [byte] => Err(handshake(&format!("it ended the exchange with byte {byte:#04x}"))),
    }
}

fn read_addresses<const N: usize>(stream: &mut impl Read) -> Result<[QpAddress; N]> {
    let mut addresses = [QpAddress { lid: 0, gid: [0; 16], qpn: 0, psn: 0, mtu: Mtu::Mtu256 }; N];
    for address in &mut addresses {
        *address = decode(&read(stream)?)?;
    }
    Ok(addresses)
}

fn handshake(what: &str) -> Error {
    Error::Handshake(what.to_owned())
}

fn read<const N: usize>(stream: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match stream.read_exact(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(handshake("it closed the connection during the exchange"))
        }
        Err(error) => Err(error.into()),
    }
}

fn encode(address: &QpAddress) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..8].copy_from_slice(&MAGIC);
    frame[8..10].copy_from_slice(&VERSION.to_be_bytes());
    frame[10] = address.mtu as u8;
    frame[12..14].copy_from_slice(&address.lid.to_be_bytes());
    frame[16..20].copy_from_slice(&address.qpn.to_be_bytes());
    frame[20..24].copy_from_slice(&address.psn.to_be_bytes());
    frame[24..].copy_from_slice(&address.gid);
    frame
}

fn decode(frame: &[u8; FRAME]) -> Result<QpAddress> {
    let u16_at = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) << 16 | u32::from(u16_at(at + 2));
    if frame[..8] != MAGIC {
        return Err(handshake(&format!(
            "it begins with \"{}\" instead of \"doorbell\"",
            frame[..8].escape_ascii()
        )));
    }
    let version = u16_at(8);
    if version != VERSION {
        return Err(handshake(&format!("it speaks version {version}, and this side {VERSION}")));
    }
    let mtu = Mtu::from_raw(sys::ibv_mtu::from(frame[10]))
        .ok_or_else(|| handshake(&format!("its MTU has the code {}", frame[10])))?;
    let mut gid = [0; 16];
    gid.copy_from_slice(&frame[24..]);
    Ok(QpAddress { lid: u16_at(12), gid, qpn: u32_at(16), psn: u32_at(20), mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: QpAddress = QpAddress {
        lid: 0x0102,
        gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0xff, 0xfe, 0x0d, 0x0e, 0x0f],
        qpn: 0x11_2233,
        psn: 0x44_5566,
        mtu: Mtu::Mtu4096,
    };

    const BYTES: [u8; FRAME] = *b"doorbell\x00\x01\x05\x00\x01\x02\x00\x00\
        \x00\x11\x22\x33\x00\x44\x55\x66\
        \xfe\x80\x00\x00\x00\x00\x00\x00\x0a\x0b\x0c\xff\xfe\x0d\x0e\x0f";

    #[test]
    fn a_frame_is_these_bytes() {
        assert_eq!(encode(&ADDRESS), BYTES);
        assert_eq!(decode(&BYTES).unwrap(), ADDRESS);
    }

    fn refusal(at: usize, byte: u8) -> String {
        let mut frame = BYTES;
        frame[at] = byte;
        match decode(&frame) {
            Err(Error::Handshake(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_a_frame_of_this_version_is_refused_with_the_reason() {
        assert!(refusal(0, b'D').contains("Doorbell"));
        assert!(refusal(7, 0).contains("\\x00"));
        assert!(refusal(9, 2).contains("version 2"));
        assert!(refusal(8, 1).contains("version 257"));
        assert!(refusal(10, 0).contains("MTU"));
        assert!(refusal(10, 6).contains("MTU"));
    }

    #[test]
    fn a_peer_that_leaves_is_not_an_io_error() {
        let mut short = &BYTES[..39];
        assert!(matches!(read::<FRAME>(&mut short), Err(Error::Handshake(_))));
    }
}
