//! A function of the adapter for virtual machines: a server of the vfio-user protocol.
//!
//! A client, like QEMU's `vfio-user-pci`, connects to a socket, shares the memory of its guest, and forwards what the
//! guest's driver does with the registers. Doorbells of programs of the guest do not pass the socket: the client maps
//! the UAR pages. One thread does it all: it waits for messages and lets the function work in between.

mod channel;
mod config_space;
mod device;
mod guest_memory;
mod irqs;
mod message;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::channel::{Channel, Message};
use self::device::{Answer, Device};
use self::message::Request;
use crate::base::pace as engine;
use crate::base::pace::Pace;
use crate::engine::NicConfig;
use crate::fabric::pcap;
use crate::fabric::playback::Playback;
use crate::objects::trace;

/// Messages that are answered before the function works again.
const MESSAGES_PER_STEP: usize = 16;

/// A device that waits for clients.
#[derive(Debug, Clone)]
pub struct Server {
    socket: PathBuf,
    config: NicConfig,
}

impl Server {
    /// Names the socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), config: NicConfig::default() }
    }

    /// Sets an option of the device, as [`Runner::set`](crate::runner::Runner::set) does.
    ///
    /// # Errors
    /// The text says which values are valid.
    pub fn set(&mut self, name: &str, value: &OsStr) -> Result<(), String> {
        self.config.set(name, value)
    }

    /// Serves one client after the other, each with a device that was just powered up, until an error of the socket
    /// itself. Prints a line when clients can connect, and the faults that were injected when a client is gone.
    pub fn run(&self) -> io::Result<()> {
        self.config.trace.as_deref().map_or(Ok(()), trace::create)?;
        self.config.pcap.as_deref().map_or(Ok(()), pcap::create)?;
        if let Some(path) = &self.config.frames {
            Playback::open(path, None)?;
        }
        let listener = listen(&self.socket)?;
        println!("soft-mlx5: listening on {}", self.socket.display());
        io::stdout().flush()?;
        engine::prefer_latency();
        loop {
            let (stream, _) = listener.accept()?;
            let mut device = Device::new(self.config.clone())?;
            if let Err(error) = serve(stream, &mut device) {
                eprintln!("soft-mlx5: connection ended: {error}");
            }
            if let Some(said) = device.injected().summary(&self.config.faults) {
                eprintln!("soft-mlx5: injected: {said}");
            }
        }
    }

    /// Serves a client that is connected already, with a device that was just powered up, until the client is gone.
    ///
    /// # Errors
    /// The client broke the protocol, or the socket failed.
    pub fn serve(&self, stream: UnixStream) -> io::Result<()> {
        serve(stream, &mut Device::new(self.config.clone())?)
    }
}

/// Listens on a socket, and removes what a server left that is gone.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {}: {error}", path.display()));
    match UnixListener::bind(path) {
        Err(error) if in_use(&error) => {
            let is_socket = fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
            if !is_socket || UnixStream::connect(path).is_ok() {
                return Err(named(error));
            }
            fs::remove_file(path).and_then(|()| UnixListener::bind(path)).map_err(named)
        }
        other => other.map_err(named),
    }
}

/// Serves a client until it is gone.
fn serve(stream: UnixStream, device: &mut Device) -> io::Result<()> {
    match answer_all(stream, device) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        other => other,
    }
}

fn answer_all(stream: UnixStream, device: &mut Device) -> io::Result<()> {
    let (mut channel, mut pace) = (Channel::new(stream), Pace::new());
    loop {
        let mut busy = false;
        for _ in 0..MESSAGES_PER_STEP {
            let Some(message) = channel.receive()? else { break };
            answer(&channel, device, message)?;
            busy = true;
        }
        busy |= device.step();
        if let Some(nap) = pace.nap(busy, device.is_used()) {
            let until = device.until_timer().map_or(nap, Duration::from_nanos);
            engine::pause(nap.min(until), [Some(channel.fd()), device.wait_fd()]);
        }
    }
}

fn answer(channel: &Channel, device: &mut Device, message: Message) -> io::Result<()> {
    let Message { header, payload, fds } = message;
    let request = Request::parse(header.command, &payload);
    let result = request.and_then(|request| device.handle(request, fds));
    if !header.wants_reply() {
        return Ok(());
    }
    match result {
        Ok(Answer { payload, with_bar }) => channel.send(&header.reply(Ok(&payload)), with_bar.then(|| device.bar())),
        Err(errno) => channel.send(&header.reply(Err(errno)), None),
    }
}

#[cfg(test)]
mod tests;
