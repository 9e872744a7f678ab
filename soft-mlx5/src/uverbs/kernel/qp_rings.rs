//! The rings of a queue pair, in the memory that the library gave.

use super::abi::Abi;
use super::abi::mlx5::{self, driver_flag};
use super::abi::uverbs::QpCap;
use super::errno::EINVAL;
use super::memlock::Pinned;
use super::udata::Udata;
use super::{Call, user};
use crate::commands::limits;
use crate::objects::{Result, Service, WqAttr};

const DEFAULT_USER_INDEX: u32 = 0xff_ffff;

/// The rings of a queue pair.
pub struct Queues {
    /// Receive queue.
    pub rq: WqAttr,
    /// Send queue.
    pub sq: WqAttr,
    /// User index.
    pub user_index: u32,
    /// Request of the driver's library.
    pub driver: mlx5::CreateQp,
    /// Their memory.
    pub pinned: Vec<Pinned>,
}

impl Call<'_> {
    pub(super) fn queues(&mut self, cap: &QpCap, has_srq: bool, service: Service, driver: &Udata) -> Result<Queues> {
        if !driver.input.is_zero_from(mlx5::CreateQp::SIZE)? {
            return Err(EINVAL);
        }
        if service == Service::Dc && (cap.max_recv_wr != 0 || cap.max_recv_sge != 0) {
            return Err(EINVAL);
        }
        let has_rq = !has_srq && cap.max_recv_wr != 0;
        if cap.max_recv_wr > limits::MAX_QP_WR {
            return Err(EINVAL);
        }
        let given: mlx5::CreateQp = driver.input.get()?;
        let raw = service == Service::Raw;
        let loopback = driver_flag::LOOPBACK_UNICAST | driver_flag::LOOPBACK_MULTICAST;
        let known = driver_flag::SCATTER_CQE
            | driver_flag::BFREG_INDEX
            | driver_flag::ALLOW_SCATTER_CQE
            | driver_flag::UAR_PAGE_INDEX
            | if service == Service::Dc { driver_flag::TYPE_DCI | driver_flag::DCI_STREAM } else { 0 }
            | if raw { loopback } else { 0 };
        if given.flags & !known != 0 || raw && has_srq {
            return Err(EINVAL);
        }
        let user_index = self.user_index(&given)?;
        let (rq, mut sq) = rings(has_rq, &given)?;
        let bytes = [rq, sq].map(|ring| u64::from(ring.count) << ring.shift);
        let pinned = if raw {
            sq.buf = given.sq_buf_addr;
            let [rq, sq] = [(given.buf_addr, bytes[0]), (sq.buf, bytes[1])];
            vec![self.core.memlock.pin(rq.0, rq.1, false)?, self.core.memlock.pin(sq.0, sq.1, false)?]
        } else {
            vec![self.core.memlock.pin(given.buf_addr, bytes[0] + bytes[1], false)?]
        };
        user::pin(given.db_addr, 8, false)?;
        Ok(Queues { rq, sq, user_index, driver: given, pinned })
    }

    pub(super) fn user_index(&mut self, given: &mlx5::CreateQp) -> Result<u32> {
        match self.context()?.cqe_version {
            0 => Ok(DEFAULT_USER_INDEX),
            _ if given.uidx >= DEFAULT_USER_INDEX => Err(EINVAL),
            _ => Ok(given.uidx),
        }
    }
}

// The buffer holds the receive queue and then the send queue. For frames the send queue has a buffer of its own.
fn rings(has_rq: bool, given: &mlx5::CreateQp) -> Result<(WqAttr, WqAttr)> {
    let power_of_two = |count: u32| count == 0 || count.is_power_of_two();
    let mut rq = WqAttr { buf: given.buf_addr, count: 0, shift: 0 };
    if has_rq {
        (rq.count, rq.shift) = (given.rq_wqe_count, given.rq_wqe_shift);
        let stride_fits = (4..=limits::MAX_RQ_DESC.ilog2()).contains(&rq.shift);
        if !stride_fits || !power_of_two(rq.count) || rq.count > limits::MAX_QP_WR {
            return Err(EINVAL);
        }
    }
    let sq_count = given.sq_wqe_count;
    if !power_of_two(sq_count) || sq_count > limits::MAX_QP_WR {
        return Err(EINVAL);
    }
    let buf = given.buf_addr.wrapping_add(u64::from(rq.count) << rq.shift);
    Ok((rq, WqAttr { buf, count: sq_count, shift: 6 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_send_queue_follows_the_receive_queue() {
        let given = mlx5::CreateQp {
            buf_addr: 0x1000,
            sq_wqe_count: 64,
            rq_wqe_count: 16,
            rq_wqe_shift: 6,
            ..mlx5::CreateQp::default()
        };
        let (rq, sq) = rings(true, &given).unwrap();
        assert_eq!((rq.buf, rq.count, rq.shift), (0x1000, 16, 6));
        assert_eq!((sq.buf, sq.count, sq.shift), (0x1400, 64, 6));
        let (rq, sq) = rings(false, &given).unwrap();
        assert_eq!((rq.count, sq.buf), (0, 0x1000));
    }

    #[test]
    fn sizes_beyond_the_device_are_invalid() {
        let fine = mlx5::CreateQp { rq_wqe_count: 4, rq_wqe_shift: 4, ..Default::default() };
        assert!(rings(true, &fine).is_ok());
        for bad in [
            mlx5::CreateQp { sq_wqe_count: 3, ..fine },
            mlx5::CreateQp { sq_wqe_count: 1 << 16, ..fine },
            mlx5::CreateQp { rq_wqe_shift: 10, ..fine },
            mlx5::CreateQp { rq_wqe_shift: 3, ..fine },
            mlx5::CreateQp { rq_wqe_shift: 200, ..fine },
            mlx5::CreateQp { rq_wqe_count: 5, ..fine },
            mlx5::CreateQp { rq_wqe_count: 1 << 16, ..fine },
        ] {
            assert_eq!(rings(true, &bad).err(), Some(EINVAL));
        }
    }
}
