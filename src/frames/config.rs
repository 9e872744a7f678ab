//! Configuration of a receiver of frames.

use mlx5_ring::frames::{Shape, Strides};
use rdma_core_sys as sys;
use sys::Mlx5dv;

use crate::attributes::LinkLayer;
use crate::caps::query_mlx5;
use crate::context::Context;
use crate::cq::CqConfig;
use crate::error::{Error, Result};
use crate::memory::HugePages;
use crate::qp::QpConfig;

/// Bytes of the shortest frame of Ethernet, without FCS.
const MIN_FRAME: u64 = 60;

/// Buffers, CQ and options of a [`FrameReceiver`](crate::frames::FrameReceiver).
///
/// ```
/// use doorbell::frames::FrameConfig;
/// use doorbell::{CqConfig, Timestamps};
///
/// // Frames of any length share 4 WQEs of 2,048 strides of 64 bytes.
/// let cq = CqConfig::default().timestamps(Timestamps::Ticks);
/// let config = FrameConfig::new().striding(4, 2048, 64).cq(cq);
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct FrameConfig {
    pub(super) cq: CqConfig,
    pub(super) port: u8,
    pub(super) wqes: u32,
    pub(super) shape: Shape,
    pub(super) spare: u32,
    pub(super) pages: HugePages,
    pub(super) vlan_stripping: bool,
    max_send_wr: Option<u32>,
    max_inline: Option<u32>,
    multi_packet: Option<bool>,
}

impl FrameConfig {
    /// Describes a receiver on port 1 with 1,024 buffers for one frame of up to 2,048 bytes each, and 64 spare
    /// buffers.
    pub const fn new() -> Self {
        Self {
            cq: CqConfig::new(1),
            port: 1,
            wqes: 1024,
            shape: Shape::Plain(2048),
            spare: 64,
            pages: HugePages::No,
            vlan_stripping: false,
            max_send_wr: None,
            max_inline: None,
            multi_packet: None,
        }
    }

    /// Sets a plain queue: `count` buffers, a power of two from 4 to the limit of the device (32,768 on soft-mlx5), for
    /// one frame of at most `bytes` bytes each, at least 60, without FCS. The device drops frames that find no posted
    /// buffer: `count` must cover the longest pause between polls.
    pub const fn plain(mut self, count: u32, bytes: u32) -> Self {
        self.wqes = count;
        self.shape = Shape::Plain(bytes);
        self
    }

    /// Sets a striding queue: `wqes` buffers, from 4 to the limit of the device (32,768 on soft-mlx5), of `strides`
    /// strides of `bytes` bytes each, all powers of two. A frame takes as many strides as it needs, in one buffer.
    /// Direct path only. Use it for frames of different lengths: short ones take little memory, and a WQE is written
    /// once for many frames.
    ///
    /// Adapters require at least 512 strides (8 with newer firmware), of 64 to 8,192 bytes (`striding_rq_caps` of
    /// `mlx5dv_query_device(3)`); doorbell takes at most 8,192, because a CQE has 14 bits for their number. Strides of
    /// 64 bytes waste the least memory. The device has room for `wqes * strides * bytes` bytes of frames, 512 KiB for
    /// `striding(4, 2048, 64)`; a buffer is posted again as a whole, after the batch that polled its last frame. A
    /// frame is at most as long as a buffer and at most 65,535 bytes.
    pub const fn striding(mut self, wqes: u32, strides: u32, bytes: u32) -> Self {
        self.wqes = wqes;
        self.shape = Shape::Striding(Strides { count: strides, size: bytes });
        self
    }

    /// Sets the number of spare buffers, 64 by default. When a frame is [taken](crate::frames::Frame::take), a spare
    /// buffer takes the place of its buffer in the queue. If none is left, the queue has one buffer less until the
    /// frame is dropped. A spare buffer is as large as a buffer of the queue: `striding(4, 2048, 64)` with 64 spare
    /// buffers registers 68 buffers of 128 KiB.
    pub const fn spare(mut self, buffers: u32) -> Self {
        self.spare = buffers;
        self
    }

    /// Sets path, completion vector and timestamps of the CQ. It is made as large as the queue needs, and at least as
    /// large as the `cqe` of `config`, 1 by default. A striding queue needs the direct path. `Timestamps` set the
    /// [timestamp](crate::frames::Frame::timestamp) of each frame.
    pub fn cq(mut self, config: CqConfig) -> Self {
        self.cq = config;
        self
    }

    /// Sets the port, 1 by default.
    pub const fn port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }

    /// Sets the kind of pages of the buffers, normal pages by default.
    pub const fn pages(mut self, pages: HugePages) -> Self {
        self.pages = pages;
        self
    }

    /// Makes the device remove the VLAN tag of a frame; [`Frame::vlan`](crate::frames::Frame::vlan) returns it.
    /// Direct path only.
    pub const fn vlan_stripping(mut self, wanted: bool) -> Self {
        self.vlan_stripping = wanted;
        self
    }

    /// Sets how many requests can be outstanding on the send queue of a receiver [with a
    /// sender](crate::frames::FrameReceiver::with_sender), 128 by default. A receiver without a sender refuses it.
    pub const fn max_send_wr(mut self, max_wr: u32) -> Self {
        self.max_send_wr = Some(max_wr);
        self
    }

    /// Sets how many bytes of a frame a request can copy into its WQE, 0 by default. As
    /// [`max_send_wr`](Self::max_send_wr), only with a sender.
    pub const fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = Some(bytes);
        self
    }

    /// Sets whether [`Posting::send_frames`](crate::Posting::send_frames) writes many frames into one WQE where the
    /// device can do so, `true` by default. Set `false` on a device that needs an inline header in each WQE and
    /// reports the capability nevertheless: verbs do not say whether it does. As [`max_send_wr`](Self::max_send_wr),
    /// only with a sender.
    pub const fn multi_packet(mut self, wanted: bool) -> Self {
        self.multi_packet = Some(wanted);
        self
    }

    /// Returns this configuration of a queue pair with the size of a send queue.
    pub(super) const fn send_side(&self, config: QpConfig) -> QpConfig {
        let max_wr = match self.max_send_wr {
            Some(max_wr) => max_wr,
            None => 128,
        };
        let max_inline = match self.max_inline {
            Some(bytes) => bytes,
            None => 0,
        };
        config.max_send_wr(max_wr).max_inline(max_inline).multi_packet(!matches!(self.multi_packet, Some(false)))
    }

    /// Refuses the size of a send queue.
    pub(super) fn check_without_sender(&self) -> Result<()> {
        let refused =
            |operation| Err(Error::Unsupported { operation, when: "without a sender: use FrameReceiver::with_sender" });
        match self {
            Self { max_send_wr: Some(_), .. } => refused("FrameConfig::max_send_wr"),
            Self { max_inline: Some(_), .. } => refused("FrameConfig::max_inline"),
            Self { multi_packet: Some(_), .. } => refused("FrameConfig::multi_packet"),
            _ => Ok(()),
        }
    }

    /// Returns the configuration of the CQ.
    pub(super) fn cq_config(&self) -> CqConfig {
        let needed = self.wqes.saturating_mul(self.shape.completions());
        CqConfig { cqe: self.cq.cqe.max(needed), ..self.cq.clone() }
    }

    /// Checks what can be checked against the device before anything is made.
    pub(super) fn check(&self, context: &Context, mlx5dv: Option<&Mlx5dv>) -> Result<()> {
        let (attr, verbs) = (context.attr(), mlx5dv.is_none());
        self.cq.uncompressed("for a FrameReceiver")?;
        Error::check_range("port", self.port.into(), 1, attr.phys_port_cnt.into())?;
        if context.query_port(self.port)?.link_layer != LinkLayer::Ethernet {
            return Err(Error::Unsupported {
                operation: "FrameReceiver",
                when: "on an InfiniBand port: use an Ethernet port, which is `--link roce` on soft-mlx5",
            });
        }
        if let (Shape::Striding(strides), Some(mlx5dv)) = (self.shape, mlx5dv) {
            check_strides(strides, &query_mlx5(context, mlx5dv)?.striding_rq_caps)?;
        }
        if let Shape::Plain(bytes) = self.shape {
            Error::check_range("bytes of a frame", bytes.into(), MIN_FRAME, i32::MAX as u64)?;
        }
        let max_wr = u64::from(attr.max_qp_wr);
        let what = "number of buffers";
        Error::check_power_of_two(what, self.wqes, 4, max_wr.min(1 << 15))?;
        let refused = |operation, when| Err(Error::Unsupported { operation, when });
        match self.shape {
            Shape::Striding(_) if verbs => refused(
                "FrameConfig::striding",
                "on the verbs path: libmlx5 does not post to striding queues, use FrameConfig::plain",
            ),
            _ if verbs && self.vlan_stripping => {
                refused("FrameConfig::vlan_stripping", "on the verbs path: ibv_poll_cq does not report the tag")
            }
            _ => Ok(()),
        }
    }
}

/// Checks strides against what the device has.
fn check_strides(strides: Strides, caps: &sys::mlx5dv_striding_rq_caps) -> Result<()> {
    if caps.supported_qpts & 1 << sys::IBV_QPT_RAW_PACKET == 0 {
        return Err(Error::Unsupported {
            operation: "FrameConfig::striding",
            when: "on this device, which has no striding receive queues: use FrameConfig::plain",
        });
    }
    let [least, most] = [caps.min_single_wqe_log_num_of_strides, caps.max_single_wqe_log_num_of_strides];
    let what = "strides of a buffer";
    // A CQE has 14 bits for the count.
    Error::check_power_of_two(what, strides.count, 1 << least, 1 << most.min(13))?;
    let [least, most] = [caps.min_single_stride_log_num_of_bytes, caps.max_single_stride_log_num_of_bytes];
    let what = "bytes of a stride";
    Error::check_power_of_two(what, strides.size, 1 << least, 1 << most.min(16))
}

impl CqConfig {
    /// Describes the CQ of a [`Sender`](crate::Sender) for `receivers` frame receivers of this configuration, made
    /// [with the sender](crate::frames::FrameReceiver::with_sender).
    ///
    /// ```no_run
    /// use doorbell::frames::{FrameConfig, FrameReceiver};
    /// use doorbell::{CqConfig, Sender};
    ///
    /// let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
    /// let config = FrameConfig::new().max_send_wr(64).max_inline(200);
    /// let mut sender = Sender::new(&pd, &CqConfig::for_frame_sends(&config, 1))?;
    /// let receiver = FrameReceiver::with_sender(&pd, &config, &mut sender)?;
    /// # let _ = receiver;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn for_frame_sends(config: &FrameConfig, receivers: u32) -> Self {
        Self::for_sends(&config.send_side(QpConfig::raw_packet(false)), receivers)
    }
}

impl Default for FrameConfig {
    fn default() -> Self {
        Self::new()
    }
}
