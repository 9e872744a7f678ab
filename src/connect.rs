//! Exchange of addresses with a peer, over any stream.
//!
//! Both sides do the same: write one frame, read the other's, connect, write one byte that says whether that worked,
//! read the other's. Queue pairs for datagrams send their queue keys after the frames, in four bytes. Numbers are
//! big-endian.
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | `doorbell` in ASCII |
//! | 8..40 | the address, see [`QpAddress::to_bytes`]; byte 11 is 1 for datagrams |
//!
//! The byte at the end is 1 for connected, 0 for not.

use std::future::Future;
use std::io::{self, Read, Write};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

#[cfg(feature = "tokio")]
use tokio::io::{self as tokio_io, AsyncRead, AsyncWrite};

use crate::error::{Error, Result};
use crate::mtu::Mtu;
use crate::qp::{AddressHandle, QpAddress, QueuePair};
use crate::qp_state::QpState;

const MAGIC: [u8; 8] = *b"doorbell";
const FRAME: usize = MAGIC.len() + QpAddress::BYTES;

/// Where a frame says what its queue pair is for.
const KIND: usize = 11;
const CONNECTION: u8 = 0;
const DATAGRAMS: u8 = 1;

pub(crate) const CLOSED: &str = "it closed the stream during the exchange";

const CONNECTED: u8 = 1;
const FAILED: u8 = 0;

impl QueuePair {
    /// Connects to the queue pair whose owner calls `connect_over` at the other end of `stream`, and returns when
    /// both queue pairs can send. Success means that both addresses are set; the first send shows whether the network
    /// carries packets between them (on soft-mlx5: whether both processes are in one fabric).
    ///
    /// The stream must accept 41 bytes before the peer reads, as sockets and pipes do: 8 for `doorbell`, the address,
    /// and later a byte that confirms. It must block. The program may use the stream for other data before and after
    /// the call. The call waits for the peer as long as the stream does: set its read time-out. In an event loop a slow
    /// peer holds up the others for that time; to avoid that, exchange [addresses](Self::address) without blocking and
    /// call [`connect`](Self::connect), which does not wait. A task of tokio calls `connect_over_async`. For datagrams
    /// use [`address_handle_over`](Self::address_handle_over).
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use std::net::{TcpListener, TcpStream};
    ///
    /// # use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, RqConfig};
    /// # let mut receiver = Receiver::new(&pd, &CqConfig::new(4096))?;
    /// # let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(128)).build()?;
    /// # let mut other = Receiver::new(&pd, &CqConfig::new(4096))?;
    /// # let mut peer = QueuePair::builder(&QpConfig::rc()).receive(&mut other, RqConfig::new(128)).build()?;
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
    /// [`Error::Handshake`] if the peer sends something else, closes the stream, or cannot connect;
    /// [`Error::SilentPeer`] if the read time-out of the stream expires; [`Error::Io`] if the stream fails;
    /// [`Error::Unsupported`] for datagrams; the errors of [`connect`](Self::connect). Nothing is written to the stream
    /// if the queue pair cannot be connected in its state.
    pub fn connect_over<S: Read + Write>(&mut self, stream: &mut S) -> Result<()> {
        let address = self.address_to_exchange("connect_over")?;
        exchange(stream, &[address], |[peer]| self.connect(&peer))
    }

    /// Does the same as [`connect_over`](Self::connect_over) in a task, over a stream of tokio. The peer may call
    /// either. Needs the feature `tokio`.
    ///
    /// The call waits for the peer without limit: wrap it in `tokio::time::timeout`. A dropped future leaves a part of
    /// the exchange in the stream, and may leave the queue pair connected: close the stream, and destroy or
    /// [reset](crate::Receiver::reset_qp) the queue pair.
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// use std::time::Duration;
    ///
    /// use tokio::net::{TcpListener, TcpStream};
    ///
    /// # use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, RqConfig};
    /// # let mut receiver = Receiver::new(&pd, &CqConfig::new(4096))?;
    /// # let mut qp = QueuePair::builder(&QpConfig::rc()).receive(&mut receiver, RqConfig::new(128)).build()?;
    /// # let mut other = Receiver::new(&pd, &CqConfig::new(4096))?;
    /// # let mut peer = QueuePair::builder(&QpConfig::rc()).receive(&mut other, RqConfig::new(128)).build()?;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let address = listener.local_addr()?;
    /// // The other side, here a task.
    /// let side = tokio::spawn(async move {
    ///     let mut stream = TcpStream::connect(address).await?;
    ///     peer.connect_over_async(&mut stream).await
    /// });
    /// let mut stream = listener.accept().await?.0;
    /// tokio::time::timeout(Duration::from_secs(5), qp.connect_over_async(&mut stream)).await??;
    /// side.await??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`connect_over`](Self::connect_over) except [`Error::SilentPeer`].
    #[cfg(feature = "tokio")]
    pub async fn connect_over_async<S: AsyncRead + AsyncWrite + Unpin>(&mut self, stream: &mut S) -> Result<()> {
        let address = self.address_to_exchange("connect_over_async")?;
        exchange_in(&mut Tokio(stream), &[address], |[peer]| self.connect(&peer)).await
    }

    /// Returns the address, if this queue pair can be connected now.
    fn address_to_exchange(&self, operation: &'static str) -> Result<QpAddress> {
        if self.is_datagram() {
            return Err(Error::Unsupported { operation, when: "for datagrams: use address_handle_over" });
        }
        self.check_connectable(operation)?;
        self.address()
    }

    /// Exchanges addresses and queue keys with the owner of a datagram queue pair who calls this function at the
    /// other end of `stream`, and returns the handle to send to. A new queue pair is [activated](Self::activate).
    /// Both sides can send when the call returns; post receives before it. The same queue pair can do this with any
    /// number of peers.
    ///
    /// The stream must accept 45 bytes before the peer reads. Time-outs are those of
    /// [`connect_over`](Self::connect_over).
    ///
    /// ```
    /// # let _device = doorbell_doc::device();
    /// # let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// # use doorbell::{CqConfig, QpConfig, QueuePair, Receiver, RqConfig, Sender};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let config = QpConfig::ud(0x1234).max_inline(64);
    /// let mut receiver = Receiver::new(&pd, &CqConfig::new(4096))?;
    /// let mut sender = Sender::new(&pd, &CqConfig::new(4096))?;
    /// let mut qp = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(128)).send(&mut sender).build()?;
    /// # let mut other = Receiver::new(&pd, &CqConfig::new(4096))?;
    /// # let mut peer = QueuePair::builder(&config).receive(&mut other, RqConfig::new(128)).build()?;
    /// let (mut here, mut there) = UnixStream::pair()?;
    /// // The other side, here a thread.
    /// let side = std::thread::spawn(move || peer.address_handle_over(&mut there).map(|_| peer));
    /// let to = qp.address_handle_over(&mut here)?;
    /// # let _peer =
    /// side.join().expect("no panic")?;
    /// let queue = qp.send_queue().expect("made with a sender");
    /// sender.post(queue)?.send_to(&to, b"hello", None)?;
    /// # doorbell_doc::finish(&mut sender, queue);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a connected transport; the errors of [`connect_over`](Self::connect_over),
    /// [`activate`](Self::activate) and [`address_handle`](Self::address_handle).
    pub fn address_handle_over<S: Read + Write>(&mut self, stream: &mut S) -> Result<AddressHandle> {
        if !self.is_datagram() {
            return Err(Error::Unsupported {
                operation: "address_handle_over",
                when: "on a connected transport: use connect_over",
            });
        }
        let stream = &mut Blocking(stream);
        now(async {
            write(stream, &encode(&self.address()?, DATAGRAMS)).await?;
            let to = self.handle_of_peer(stream).await;
            agree(stream, to).await
        })
    }

    async fn handle_of_peer(&mut self, stream: &mut impl Stream) -> Result<AddressHandle> {
        let peer = decode(&read(stream).await?, DATAGRAMS)?;
        // Only now: a peer of another transport would leave it unread, and the stream end with a reset.
        write(stream, &self.qkey().to_be_bytes()).await?;
        let qkey = u32::from_be_bytes(read(stream).await?);
        let to = self.address_handle(&peer, qkey)?;
        if self.known_state() == QpState::Init {
            self.activate()?;
        }
        Ok(to)
    }
}

/// The stream of an exchange. A stream that blocks is one whose futures are ready when they are first polled.
trait Stream {
    /// Writes all bytes, and flushes.
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize>;
}

struct Blocking<'a, S>(&'a mut S);

impl<S: Read + Write> Stream for Blocking<'_, S> {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).and_then(|()| self.0.flush())
    }

    async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

#[cfg(feature = "tokio")]
struct Tokio<'a, S>(&'a mut S);

#[cfg(feature = "tokio")]
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for Tokio<'_, S> {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        tokio_io::AsyncWriteExt::write_all(self.0, bytes).await?;
        tokio_io::AsyncWriteExt::flush(self.0).await
    }

    async fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        tokio_io::AsyncReadExt::read(self.0, bytes).await
    }
}

/// Runs an exchange over a stream that blocks.
fn now<T>(exchange: impl Future<Output = T>) -> T {
    match pin!(exchange).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("the futures of a stream that blocks are ready"),
    }
}

/// Sends the addresses of `N` queue pairs to the peer, and connects to those of the peer.
pub(crate) fn exchange<const N: usize, S: Read + Write>(
    stream: &mut S,
    addresses: &[QpAddress; N],
    connect: impl FnOnce([QpAddress; N]) -> Result<()>,
) -> Result<()> {
    now(exchange_in(&mut Blocking(stream), addresses, connect))
}

async fn exchange_in<const N: usize>(
    stream: &mut impl Stream,
    addresses: &[QpAddress; N],
    connect: impl FnOnce([QpAddress; N]) -> Result<()>,
) -> Result<()> {
    for address in addresses {
        write(stream, &encode(address, CONNECTION)).await?;
    }
    let connected = read_addresses(stream).await.and_then(connect);
    agree(stream, connected).await
}

/// Sends to the peer whether this side succeeded, and gives what it came to when the peer says that it did too.
async fn agree<T>(stream: &mut impl Stream, outcome: Result<T>) -> Result<T> {
    // The peer waits for this byte in either case. The error of `outcome` goes before that of sending.
    let sent = write(stream, &[if outcome.is_ok() { CONNECTED } else { FAILED }]).await;
    let outcome = outcome?;
    sent?;
    match read(stream).await? {
        [CONNECTED] => Ok(outcome),
        [FAILED] => Err(handshake("it could not connect its side, which has an error that says why")),
        [byte] => Err(handshake(&format!("it ended the exchange with byte {byte:#04x}"))),
    }
}

async fn read_addresses<const N: usize>(stream: &mut impl Stream) -> Result<[QpAddress; N]> {
    let mut addresses = [QpAddress { lid: 0, gid: [0; 16], qpn: 0, psn: 0, mtu: Mtu::Mtu256 }; N];
    for address in &mut addresses {
        *address = decode(&read(stream).await?, CONNECTION)?;
    }
    Ok(addresses)
}

pub(crate) fn handshake(what: &str) -> Error {
    Error::Handshake(what.to_owned())
}

/// Converts an error of a stream: two kinds mean that the other end was closed with bytes that were not read.
pub(crate) fn failed(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => handshake(CLOSED),
        _ => error.into(),
    }
}

async fn write(stream: &mut impl Stream, bytes: &[u8]) -> Result<()> {
    stream.write(bytes).await.map_err(failed)
}

async fn read<const N: usize>(stream: &mut impl Stream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut received = 0;
    while received < N {
        match stream.read(&mut bytes[received..]).await {
            Ok(0) => return Err(handshake(CLOSED)),
            Ok(count) => received += count,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                // `WouldBlock` is the error of a socket after its time-out.
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    return Err(Error::SilentPeer { received, expected: N });
                }
                _ => return Err(failed(error)),
            },
        }
    }
    Ok(bytes)
}

fn encode(address: &QpAddress, kind: u8) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..MAGIC.len()].copy_from_slice(&MAGIC);
    frame[MAGIC.len()..].copy_from_slice(&address.to_bytes());
    frame[KIND] = kind;
    frame
}

fn decode(frame: &[u8; FRAME], kind: u8) -> Result<QpAddress> {
    let (magic, rest) = frame.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(handshake(&format!("it begins with \"{}\" instead of \"doorbell\"", magic.escape_ascii())));
    }
    let mut bytes = [0; QpAddress::BYTES];
    bytes.copy_from_slice(rest);
    let address = QpAddress::from_bytes(&bytes).map_err(|error| handshake(&error.to_string()))?;
    match (kind, frame[KIND]) {
        (asked, given) if asked == given => Ok(address),
        (_, DATAGRAMS) => Err(handshake(
            "its queue pair is for datagrams, and this one for a connection: both sides need the same transport",
        )),
        (_, CONNECTION) => Err(handshake(
            "its queue pair is for a connection, and this one for datagrams: both sides need the same transport",
        )),
        (_, other) => Err(handshake(&format!("it has a transport with the number {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::ADDRESS;

    const BYTES: [u8; FRAME] = *b"doorbell\x00\x01\x05\x00\x01\x02\x00\x00\
        \x00\x11\x22\x33\x00\x44\x55\x66\
        \xfe\x80\x00\x00\x00\x00\x00\x00\x0a\x0b\x0c\xff\xfe\x0d\x0e\x0f";

    #[test]
    fn a_frame_is_these_bytes() {
        assert_eq!(encode(&ADDRESS, CONNECTION), BYTES);
        assert_eq!(decode(&BYTES, CONNECTION).unwrap(), ADDRESS);
        let mut datagrams = BYTES;
        datagrams[KIND] = 1;
        assert_eq!(encode(&ADDRESS, DATAGRAMS), datagrams);
        assert_eq!(decode(&datagrams, DATAGRAMS).unwrap(), ADDRESS);
    }

    fn refusal(at: usize, byte: u8) -> String {
        let mut frame = BYTES;
        frame[at] = byte;
        match decode(&frame, CONNECTION) {
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
        assert!(refusal(KIND, DATAGRAMS).contains("for datagrams"));
        assert!(refusal(KIND, 7).contains("number 7"));
    }

    #[test]
    fn a_peer_that_leaves_is_not_an_io_error() {
        for kind in [None, Some(io::ErrorKind::ConnectionReset)] {
            assert!(matches!(read_from(&BYTES[..39], kind), Err(Error::Handshake(_))));
        }
    }

    /// A stream that ends after some bytes, or fails.
    struct Short<'a>(&'a [u8], Option<io::ErrorKind>);

    impl Read for Short<'_> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            match (self.0.read(bytes)?, self.1) {
                (0, Some(kind)) => Err(kind.into()),
                (count, _) => Ok(count),
            }
        }
    }

    impl Write for Short<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn read_from(bytes: &[u8], then: Option<io::ErrorKind>) -> Result<[u8; FRAME]> {
        now(read(&mut Blocking(&mut Short(bytes, then))))
    }

    #[test]
    fn a_peer_that_is_silent_is_named_with_what_came() {
        for kind in [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut] {
            let error = read_from(&BYTES[..3], Some(kind)).unwrap_err();
            assert!(matches!(error, Error::SilentPeer { received: 3, expected: FRAME }), "{error}");
            assert!(error.to_string().contains("calls connect_over"), "{error}");
        }
        assert!(matches!(read_from(&BYTES[..3], Some(io::ErrorKind::NotConnected)), Err(Error::Io(_))));
    }
}
