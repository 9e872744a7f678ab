//! Registers of the port and the board.

use mlx5_wire::firmware::fields::Value;
use mlx5_wire::firmware::register::{AccessRegister, Paos, Pmtu, Ptys, Pvlc, id};

use super::Execution;
use super::opcodes::{Command, Result};
use super::refusal::Refusal;
use crate::fabric::LinkLayer;
use crate::fabric::packet::MAX_MTU;

const READ: u16 = 1;
const NODE_DESC: usize = 0x40;

const WIDTH_4X: u16 = 4;
const SPEED_EDR: u16 = 0x20;
const SPEED_100G: u32 = 1 << 23;
const ETHERNET: u8 = 4;
const INFINIBAND: u8 = 1;
const UP: u8 = 1;
const DOWN: u8 = 2;
/// Four virtual lanes.
const LANES: u8 = 4;

/// Writes a register into its room, which may be shorter.
fn put<T: Value>(room: &mut [u8], value: T) {
    if let Some(bytes) = room.get_mut(..T::SIZE) {
        value.write(bytes, 0, 0);
    }
}

fn get<T: Value>(data: &[u8]) -> Result<T> {
    data.get(..T::SIZE).map(|bytes| T::read(bytes, 0, 0)).ok_or(Refusal::INPUT_LENGTH)
}

impl Execution<'_> {
    pub(super) fn access_register(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let access: AccessRegister = command.parse()?;
        let data = command.after::<AccessRegister>();
        let reads = command.request.op_mod == READ;
        // An answer begins as a copy of the input: the fields that the register does not set are as they were.
        let room = &mut output[AccessRegister::SIZE..];
        let len = room.len().min(data.len());
        room[..len].copy_from_slice(&data[..len]);
        match access.id {
            id::PMTU => {
                let mtu = self.port_mtu();
                let asked: Pmtu = get(data)?;
                put(room, Pmtu { max_mtu: mtu, admin_mtu: mtu, oper_mtu: mtu, ..asked });
            }
            id::PTYS => put(room, self.port_speed(get(data)?)),
            id::PAOS => {
                let paos: Paos = get(data)?;
                if !reads && paos.admin_enable {
                    self.set_port_state(&paos)?;
                }
                let up = self.nic.port().up;
                put(
                    room,
                    Paos {
                        admin: if self.state.vport.admin_down { DOWN } else { UP },
                        oper: if up { UP } else { DOWN },
                        admin_enable: false,
                        ..paos
                    },
                );
            }
            id::PVLC => {
                let lanes: Pvlc = get(data)?;
                put(room, Pvlc { hardware: LANES, admin: LANES, oper: LANES, ..lanes });
            }
            id::NODE_DESC if reads => {
                let name = room.get_mut(..NODE_DESC).ok_or(Refusal::OUTPUT_LENGTH)?;
                name.copy_from_slice(&self.state.vport.node_desc);
            }
            id::NODE_DESC => {
                let name = data.first_chunk().ok_or(Refusal::INPUT_LENGTH)?;
                self.state.vport.node_desc = *name;
            }
            // Counters of the port, and what the board says about itself: zeros.
            id::PPCNT | id::MGIR if reads => {}
            id::HOST_ENDIANNESS => {}
            _ => return Err(Refusal::REGISTER),
        }
        Ok(())
    }

    fn port_mtu(&self) -> u16 {
        match self.state.layer {
            LinkLayer::InfiniBand => MAX_MTU as u16,
            // The driver takes 22 bytes off for the headers of Ethernet.
            LinkLayer::Ethernet => 1500 + 22,
        }
    }

    fn port_speed(&self, asked: Ptys) -> Ptys {
        match self.state.layer {
            LinkLayer::InfiniBand => Ptys {
                protocol: INFINIBAND,
                ib_width_capability: WIDTH_4X,
                ib_speed_capability: SPEED_EDR,
                ib_width_admin: WIDTH_4X,
                ib_speed_admin: SPEED_EDR,
                ib_width_oper: WIDTH_4X,
                ib_speed_oper: SPEED_EDR,
                ..asked
            },
            LinkLayer::Ethernet => Ptys {
                protocol: ETHERNET,
                eth_capability: SPEED_100G,
                eth_admin: SPEED_100G,
                eth_oper: SPEED_100G,
                ..asked
            },
        }
    }

    fn set_port_state(&mut self, paos: &Paos) -> Result {
        match paos.admin {
            UP | DOWN => {
                self.state.vport.admin_down = paos.admin == DOWN;
                self.nic.set_link(paos.admin == UP);
                Ok(())
            }
            _ => Err(Refusal::ATTRIBUTES),
        }
    }
}
