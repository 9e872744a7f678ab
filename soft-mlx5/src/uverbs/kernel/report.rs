//! Events of the device on their way to the program.

use super::async_event::{AsyncTarget, event_type};
use super::cq::Cq;
use super::errno::EINVAL;
use super::events::FileId;
use super::qp::Qp;
use super::srq::Srq;
use super::wq::Wq;
use super::{Core, Number, Places};
use crate::objects::{Event, Result};

/// File and handle of each object that events name.
#[derive(Debug, Default)]
pub struct Routes {
    places: Places,
}

impl Routes {
    /// Adds a new object.
    pub fn add(&mut self, number: Number, file: FileId, handle: u32) {
        self.places.insert(number, (file, handle));
    }

    /// Removes a destroyed object.
    pub fn remove(&mut self, number: Number) {
        self.places.remove(&number);
    }
}

impl Core {
    /// Hands all events of the device to the program.
    pub fn deliver_events(&mut self) {
        while let Some(event) = self.nic.next_event() {
            self.deliver_to_subscribers(&event);
            // An event of an object that was destroyed meanwhile has no reader.
            let _ = self.deliver(event);
        }
        self.events.flush();
        self.umad.flush();
    }

    fn place(&self, number: Number) -> Result<(FileId, u32)> {
        self.routes.places.get(&number).copied().ok_or(EINVAL)
    }

    fn deliver(&mut self, event: Event) -> Result<()> {
        use event_type::*;
        // The kernel takes no event of a device that is gone.
        if self.is_removed() && event != Event::DeviceFatal {
            return Ok(());
        }
        match event {
            Event::Completion(cqn) => return self.complete(Number::Cq(cqn)),
            Event::CqError(cqn) => {
                let (file, handle) = self.place(Number::Cq(cqn))?;
                let files = self.files.get_mut(&file).ok_or(EINVAL)?;
                let target = &mut files.handles.get_mut::<Cq>(handle)?.events;
                push(&mut self.events, target, CQ_ERR);
            }
            Event::QpFatal(qpn) => self.of_qp(Number::Qp(qpn), QP_FATAL)?,
            Event::QpAccessError(qpn) => self.of_qp(Number::Qp(qpn), QP_ACCESS_ERR)?,
            Event::QpRequestError(qpn) => self.of_qp(Number::Qp(qpn), QP_REQ_ERR)?,
            Event::CommunicationEstablished(qpn) => self.of_qp(Number::Qp(qpn), COMM_EST)?,
            Event::SqDrained(qpn) => self.of_qp(Number::Qp(qpn), SQ_DRAINED)?,
            Event::LastWqe(qpn) => self.of_qp(Number::Qp(qpn), QP_LAST_WQE_REACHED)?,
            // The kernel waits for the one, and no program hears of the other.
            Event::DctDrained(_) | Event::DctKeyViolation(_) => {}
            Event::SrqLimit(srqn) => self.of_srq(Number::Srq(srqn), SRQ_LIMIT_REACHED)?,
            Event::SrqError(srqn) => self.of_srq(Number::Srq(srqn), SRQ_ERR)?,
            Event::WqFatal(wqn) => {
                let (file, handle) = self.place(Number::Wq(wqn))?;
                let files = self.files.get_mut(&file).ok_or(EINVAL)?;
                push(&mut self.events, &mut files.handles.get_mut::<Wq>(handle)?.events, WQ_FATAL);
            }
            Event::Port { up } => {
                self.port_news = Some(up);
                self.broadcast(1, if up { PORT_ACTIVE } else { PORT_ERR });
            }
            Event::DeviceFatal => self.broadcast(0, DEVICE_FATAL),
        }
        Ok(())
    }

    fn complete(&mut self, number: Number) -> Result<()> {
        let (file, handle) = self.place(number)?;
        let file = self.files.get_mut(&file).ok_or(EINVAL)?;
        let cq = file.handles.get_mut::<Cq>(handle)?;
        if let Some(channel) = cq.channel {
            if self.events.push_completion(channel, cq.events.element) {
                cq.completions += 1;
            }
        }
        Ok(())
    }

    fn of_qp(&mut self, number: Number, event_type: u32) -> Result<()> {
        let (file, handle) = self.place(number)?;
        let file = self.files.get_mut(&file).ok_or(EINVAL)?;
        push(&mut self.events, &mut file.handles.get_mut::<Qp>(handle)?.events, event_type);
        Ok(())
    }

    fn of_srq(&mut self, number: Number, event_type: u32) -> Result<()> {
        let (file, handle) = self.place(number)?;
        let file = self.files.get_mut(&file).ok_or(EINVAL)?;
        push(&mut self.events, &mut file.handles.get_mut::<Srq>(handle)?.events, event_type);
        Ok(())
    }

    fn broadcast(&mut self, element: u64, event_type: u32) {
        for id in self.events.asynchronous() {
            self.events.push_async(id, element, event_type);
        }
    }

    /// Takes unread asynchronous events of a dying object back; returns how many were read.
    pub(super) fn read_async_events(&mut self, target: &AsyncTarget, types: &[u32]) -> u32 {
        let retract = |file| self.events.retract_async(file, target.element, types);
        target.delivered - target.file.map_or(0, retract).min(target.delivered)
    }
}

fn push(events: &mut super::EventFiles, target: &mut AsyncTarget, event_type: u32) {
    if let Some(file) = target.file {
        if events.push_async(file, target.element, event_type) {
            target.delivered += 1;
        }
    }
}
