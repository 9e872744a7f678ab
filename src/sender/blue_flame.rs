//! Which WQEs are copied to the register.

use std::sync::Arc;

use mlx5_ring::sq::BlueFlame;

use crate::thread_domain::ThreadDomain;

/// Decides which WQEs are copied to a register: as libmlx5 does, and none to one that others may have.
pub(super) fn blue_flame(register: Option<&Arc<ThreadDomain>>) -> BlueFlame {
    if register.is_none() || is_on("MLX5_SHUT_UP_BF", false) {
        return BlueFlame::Never;
    }
    if is_on("MLX5_POST_SEND_PREFER_BF", true) { BlueFlame::Always } else { BlueFlame::Inline }
}

/// Reads a switch as libmlx5 does.
fn is_on(name: &str, otherwise: bool) -> bool {
    std::env::var_os(name).map_or(otherwise, |value| value != "0")
}
