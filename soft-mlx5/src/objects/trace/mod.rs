//! Decoded trace of a device: a line for each WQE, doorbell and CQE.
//!
//! A line is `TIME lid=N KIND key=value ...`. KIND is `doorbell`, `wqe` or `cqe`; the keys are named
//! after the fields of `mlx5dv.h`, so that `grep` finds the way of one QP or one slot.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use mlx5_wire::data::DataSegment;
use mlx5_wire::dbrec::Arm;
use mlx5_wire::text::{Addressing, CqeText, RingText, WqeText};

use super::completion::Completion;
use super::scatter::ScatterList;
use super::strict::Object;
use super::uar::Ring;
use super::wqe::SendWqe;
use super::{Cqn, Service, Srqn};

/// Makes an empty trace, and overwrites an existing file.
pub fn create(path: &Path) -> io::Result<()> {
    std::fs::write(path, "")
}

/// File for the lines.
#[derive(Debug, Default)]
pub struct Trace {
    file: Option<File>,
    epoch: u64,
    lid: u16,
    /// Time of the device.
    pub now: u64,
}

impl Trace {
    /// Adds to a file that [`create`] made, if there is one. Time 0 of the device is `epoch`
    /// nanoseconds after 1970.
    pub fn open(path: Option<&Path>, epoch: u64, lid: u16) -> io::Result<Self> {
        let open = |path| OpenOptions::new().append(true).open(path);
        Ok(Self { file: path.map(open).transpose()?, epoch, lid, now: 0 })
    }

    /// Returns `true` if there is a file for the lines.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    #[cold]
    fn line(&mut self, what: fmt::Arguments) {
        let Some(file) = &mut self.file else { return };
        let time = self.epoch + self.now;
        let (seconds, nanoseconds) = (time / 1_000_000_000, time % 1_000_000_000);
        let line = format!("{seconds}.{nanoseconds:09} lid={} {what}\n", self.lid);
        // One write, so that the lines of several devices do not mix; a full disk ends the trace, not
        // the program.
        let _ = file.write_all(line.as_bytes());
    }

    /// Traces a register write.
    pub fn rang(&mut self, page: u32, ring: &Ring) {
        if self.is_on() {
            let ctrl = RingText(ring.value);
            self.line(format_args!("doorbell uar={page} {ctrl}"));
        }
    }

    /// Traces a CQ doorbell with the arm record.
    pub fn armed(&mut self, cqn: Cqn, arm: &Arm) {
        if self.is_on() {
            let Arm { sequence, solicited_only, consumer_index } = arm;
            let wanted = if *solicited_only { "solicited" } else { "any" };
            let cqn = cqn.0;
            self.line(format_args!("doorbell cq={cqn:#x} arm={wanted} sn={sequence} ci={consumer_index}"));
        }
    }

    /// Traces a new value of the doorbell record of a receive queue.
    pub fn handed_over(&mut self, owner: Object, counter: u16, more: u16) {
        if self.is_on() {
            let (kind, number) = match owner {
                Object::Qp(number) => ("qp", number),
                Object::Srq(number) => ("srq", number),
                Object::Wq(number) => ("wq", number),
                Object::Cq(number) => ("cq", number),
                Object::Uar(number) => ("uar", number),
            };
            self.line(format_args!("doorbell {kind}={number:#x} rcv_counter={counter} new={more}"));
        }
    }

    /// Traces a started send WQE.
    pub fn send(&mut self, service: Service, wqe: &SendWqe) {
        if self.is_on() {
            let addressing = match service {
                Service::Rc | Service::Uc => Addressing::Connected,
                Service::Ud => Addressing::Datagram,
                Service::Raw => Addressing::Ethernet,
                Service::Dc => Addressing::Dynamic,
            };
            let wqe = WqeText { bytes: wqe.bytes(), addressing: Some(addressing) };
            self.line(format_args!("wqe sq {wqe}"));
        }
    }

    /// Traces a taken receive WQE: of the queue pair's own queue, or of a shared one.
    pub fn receive(&mut self, qpn: u32, srq: Option<Srqn>, counter: u16, list: &ScatterList) {
        if self.is_on() {
            let data = Segments(list.segments());
            match srq {
                Some(srq) => {
                    let srqn = srq.0;
                    self.line(format_args!("wqe srq={srqn:#x} slot={counter} qp={qpn:#x} {data}"));
                }
                None => self.line(format_args!("wqe qp={qpn:#x} rq wqe_counter={counter} {data}")),
            }
        }
    }

    /// Traces a taken WQE of a receive queue of frames.
    pub fn receive_frames(&mut self, wq: u32, counter: u16, list: &ScatterList) {
        if self.is_on() {
            let data = Segments(list.segments());
            self.line(format_args!("wqe wq={wq:#x} wqe_counter={counter} {data}"));
        }
    }

    /// Traces a frame that was dropped, because no WQE was posted.
    pub fn dropped(&mut self, wq: u32, len: usize) {
        if self.is_on() {
            self.line(format_args!("drop wq={wq:#x} byte_cnt={len}"));
        }
    }

    /// Traces a flow rule that was made, or a flow that was removed.
    pub fn flow(&mut self, what: &str, flow: u32, more: fmt::Arguments) {
        if self.is_on() {
            self.line(format_args!("flow {what}={flow} {more}"));
        }
    }

    /// Traces a CQE that is written at `index` of a CQ.
    pub fn completed(&mut self, cqn: Cqn, index: u32, completion: &Completion) {
        if self.is_on() {
            let cqe = CqeText(&completion.cqe);
            self.line(format_args!("cqe cq={:#x} index={index} {cqe}", cqn.0));
        }
    }
}

/// Data segments.
struct Segments<'a>(&'a [DataSegment]);

impl fmt::Display for Segments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("data=[")?;
        for (index, segment) in self.0.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            write!(f, "{space}{segment}")?;
        }
        f.write_str("]")
    }
}
