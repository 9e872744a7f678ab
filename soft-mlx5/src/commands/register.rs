//! Registers of the port and the board.

use mlx5_wire::firmware::fields::Value;
use mlx5_wire::firmware::register::{AccessRegister, Mcam, Mcia, Mcqi, McqiVersion, Mcqs, Paos, Pmtu, Ptys, Pvlc, id};

use super::opcodes::{Command, Result};
use super::refusal::Refusal;
use super::{Commands, Execution};
use crate::fabric::LinkLayer;
use crate::fabric::packet::{MAX_ETHERNET, MAX_MTU, MIN_ETHERNET};

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
/// Bytes of Ethernet headers that the driver counts to the MTU.
const HEADERS: u16 = 22;
const MTU: u16 = 1500 + HEADERS;
const MODULE_ABSENT: u8 = 1;
/// The only component, the image of the firmware.
const IMAGE: u16 = 0;
const IMAGE_ID: u16 = 1;
const VERSION: u8 = 1;

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
                let (asked, max_mtu): (Pmtu, _) = (get(data)?, self.max_mtu());
                if !reads {
                    self.set_mtu(asked.admin_mtu)?;
                }
                let mtu = self.port_mtu();
                put(room, Pmtu { max_mtu, admin_mtu: mtu, oper_mtu: mtu, ..asked });
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
            // Counters of the port, and what the board says about itself: zeros. There is no flow control, no forward
            // error correction, and no module.
            id::PPCNT | id::MGIR | id::PFCC | id::PMLP | id::PPLM | id::PDDR if reads => {}
            id::MCIA if reads => put(room, Mcia { status: MODULE_ABSENT, ..get(data)? }),
            id::MCAM if reads => {
                let asked: Mcam = get(data)?;
                let first = asked.group == 0;
                put(room, Mcam { mcqi: first, mcqs: first, ..asked });
            }
            id::MCQS if reads => {
                let asked: Mcqs = get(data)?;
                if asked.component != IMAGE {
                    return Err(Refusal::REGISTER);
                }
                put(room, Mcqs { last: true, identifier: IMAGE_ID, update_state: 0, ..asked });
            }
            id::MCQI if reads => {
                let asked: Mcqi = get(data)?;
                if (asked.component, asked.info_type) != (IMAGE, VERSION) {
                    return Err(Refusal::REGISTER);
                }
                let [major, minor, sub] = Commands::VERSION.map(u32::from);
                let version = McqiVersion { version: major << 24 | minor << 16 | sub };
                let bytes = version.to_bytes();
                put(room, Mcqi { info_size: bytes.len() as u32, ..asked });
                // The driver takes as much as it has room for.
                room.iter_mut().skip(Mcqi::SIZE).zip(bytes).for_each(|(byte, new)| *byte = new);
            }
            id::HOST_ENDIANNESS => {}
            _ => return Err(Refusal::REGISTER),
        }
        Ok(())
    }

    fn max_mtu(&self) -> u16 {
        match self.state.layer {
            LinkLayer::InfiniBand => MAX_MTU as u16,
            LinkLayer::Ethernet => MAX_ETHERNET as u16,
        }
    }

    fn port_mtu(&self) -> u16 {
        self.state.vport.port_mtu.unwrap_or(match self.state.layer {
            LinkLayer::InfiniBand => MAX_MTU as u16,
            LinkLayer::Ethernet => MTU,
        })
    }

    fn set_mtu(&mut self, mtu: u16) -> Result {
        if self.state.layer != LinkLayer::Ethernet || !(MIN_ETHERNET as u16..=self.max_mtu()).contains(&mtu) {
            return Err(Refusal::ATTRIBUTES);
        }
        self.state.vport.port_mtu = Some(mtu);
        Ok(())
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
