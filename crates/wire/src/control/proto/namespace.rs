//! Namespace messages.

use base::limits::NAME_MAX;
use base::{DirId, FileId};
use codec::limits::{DATA_MAX, PARITY_MAX};

use super::envelope::change;
use super::{Proto, WireError, all, need, pb};
use crate::control::check::{each, name, range_u8, range_u32, secret, text, u128_bytes, u128_from};
use crate::control::limits::{LATER_MAX_S, LATER_MIN_S, LINKS_MAX, LIST_MAX, MODE_MAX, TARGET_MAX};
use crate::control::{
    Attributes, Compression, Later, NameKey, NamedNode, NamespaceChange, NamespaceReply,
    NamespaceRequest, Node, Policy, Verify,
};

impl Proto for Attributes {
    type Pb = pb::Attributes;

    fn to_pb(&self) -> pb::Attributes {
        pb::Attributes { mode: self.mode, mtime: self.mtime }
    }

    fn from_pb(pb: pb::Attributes) -> Result<Attributes, WireError> {
        let mode = range_u32(pb.mode, 0..=MODE_MAX, "Attributes.mode")?;
        Ok(Attributes { mode, mtime: pb.mtime })
    }
}

impl Proto for Policy {
    type Pb = pb::Policy;

    fn to_pb(&self) -> pb::Policy {
        let compression = Compression::to_byte(self.compression).into();
        let coded = coded_pb(self.data, self.copies, self.acks);
        let plain = |number: u8| if coded.is_some() { 0 } else { number.into() };
        let (copies, acks) = (plain(self.copies), plain(self.acks));
        let later = self.later.map(|later| {
            let form = Some(Box::new(later.policy().to_pb()));
            Box::new(pb::Later { after_s: later.after_s, form })
        });
        let verify = self.verify.number().into();
        pb::Policy { copies, acks, compression, coded, later, verify }
    }

    fn from_pb(pb: pb::Policy) -> Result<Policy, WireError> {
        let compression = compression(pb.compression, "Policy.compression")?;
        let policy = match pb.coded {
            Some(coded) if (pb.copies, pb.acks) == (0, 0) => coded_policy(&coded, "Policy.coded")?,
            Some(_) => return Err(both_policies("Policy.coded", pb.copies, pb.acks)),
            None => {
                let copies = range_u8(pb.copies, 0..=u8::MAX, "Policy.copies")?;
                Policy::plain(copies, range_u8(pb.acks, 0..=u8::MAX, "Policy.acks")?)
            }
        };
        let later = match pb.later {
            None => None,
            Some(later) => {
                let range = LATER_MIN_S..=LATER_MAX_S;
                let after_s = range_u32(later.after_s, range, "Policy.later.after_s")?;
                let form = later.form.ok_or(WireError::Missing { field: "Policy.later.form" })?;
                if form.later.is_some() || form.verify != 0 {
                    let (field, copies, acks) = ("Policy.later.form", form.copies, form.acks);
                    return Err(WireError::BadPolicy { field, copies, acks });
                }
                Some(Later::new(after_s, Policy::from_pb(*form)?))
            }
        };
        let verify = range_u8(pb.verify, 0..=u8::MAX, "Policy.verify")?;
        let verify = Verify::from_number(verify)
            .ok_or(WireError::OutOfRange { field: "Policy.verify", value: verify.into() })?;
        let policy = policy.compressed(compression).and_later(later).verified(verify);
        if !policy.is_valid() {
            return Err(WireError::BadPolicy { field: "Policy", copies: pb.copies, acks: pb.acks });
        }
        Ok(policy)
    }
}

/// The form of a code, of which `copies` is the number of fragments; none where replicas are copies.
pub(super) fn coded_pb(data: u8, copies: u8, acks: u8) -> Option<pb::Coded> {
    let parity = copies.saturating_sub(data);
    let coded = pb::Coded { data: data.into(), parity: parity.into(), acks: acks.into() };
    (data > 1).then_some(coded)
}

/// The error for copies beside a code.
pub(super) fn both_policies(field: &'static str, copies: u32, acks: u32) -> WireError {
    WireError::BadPolicy { field, copies, acks }
}

/// The policy of a code, which is a valid one.
pub(super) fn coded_policy(pb: &pb::Coded, field: &'static str) -> Result<Policy, WireError> {
    let data = range_u8(pb.data, 2..=DATA_MAX as u8, field)?;
    let parity = range_u8(pb.parity, 1..=PARITY_MAX as u8, field)?;
    let acks = range_u8(pb.acks, data + 1..=data + parity, field)?;
    Ok(Policy { acks, ..Policy::ec(data, parity) })
}

pub(super) fn compression(
    number: u32,
    field: &'static str,
) -> Result<Option<Compression>, WireError> {
    let byte = range_u8(number, 0..=u8::MAX, field)?;
    Compression::from_byte(byte).map_err(|_| WireError::OutOfRange { field, value: number.into() })
}

fn target(target: String) -> Result<String, WireError> {
    text(target, 1..=TARGET_MAX, "Symlink.target")
}

impl Proto for Node {
    type Pb = pb::Node;

    fn to_pb(&self) -> pb::Node {
        use pb::node::{Dir, File, Kind, Symlink};
        let kind = match self {
            Node::File { file, policy, attributes, links, len } => Kind::File(File {
                file: file.get(),
                policy: Some(policy.to_pb()),
                attributes: Some(attributes.to_pb()),
                links: *links,
                len: *len,
            }),
            Node::Dir { dir, attributes } => {
                Kind::Dir(Dir { dir: u128_bytes(dir.get()), attributes: Some(attributes.to_pb()) })
            }
            Node::Symlink { target, attributes } => Kind::Symlink(Symlink {
                target: target.clone(),
                attributes: Some(attributes.to_pb()),
            }),
        };
        pb::Node { kind: Some(kind) }
    }

    fn from_pb(pb: pb::Node) -> Result<Node, WireError> {
        use pb::node::Kind;
        Ok(match pb.kind.ok_or(WireError::Missing { field: "Node.kind" })? {
            Kind::File(pb) => Node::File {
                file: FileId::new(pb.file),
                policy: need(pb.policy, "Node.File.policy")?,
                attributes: need(pb.attributes, "Node.File.attributes")?,
                links: pb.links,
                len: pb.len,
            },
            Kind::Dir(pb) => Node::Dir {
                dir: DirId::new(u128_from(&pb.dir, "Node.Dir.dir")?),
                attributes: need(pb.attributes, "Node.Dir.attributes")?,
            },
            Kind::Symlink(pb) => Node::Symlink {
                target: target(pb.target)?,
                attributes: need(pb.attributes, "Node.Symlink.attributes")?,
            },
        })
    }
}

impl Proto for NamedNode {
    type Pb = pb::NamedNode;

    fn to_pb(&self) -> pb::NamedNode {
        pb::NamedNode { name: self.name.clone(), node: Some(self.node.to_pb()) }
    }

    fn from_pb(pb: pb::NamedNode) -> Result<NamedNode, WireError> {
        Ok(NamedNode {
            name: name(pb.name, "NamedNode.name")?,
            node: need(pb.node, "NamedNode.node")?,
        })
    }
}

impl Proto for NameKey {
    type Pb = pb::NameKey;

    fn to_pb(&self) -> pb::NameKey {
        pb::NameKey { parent: u128_bytes(self.parent.get()), name: self.name.clone() }
    }

    fn from_pb(pb: pb::NameKey) -> Result<NameKey, WireError> {
        Ok(NameKey {
            parent: DirId::new(u128_from(&pb.parent, "NameKey.parent")?),
            name: name(pb.name, "NameKey.name")?,
        })
    }
}

impl Proto for NamespaceChange {
    type Pb = pb::NamespaceChange;

    fn to_pb(&self) -> pb::NamespaceChange {
        use pb::namespace_change::{
            Change, Create, Link, Mkdir, NewName, Rename, SetAttributes, SetDirPolicy,
            SetFilePolicy, Symlink,
        };
        let change = match self {
            NamespaceChange::Mkdir { place, attributes } => Change::Mkdir(Mkdir {
                place: Some(place.to_pb()),
                attributes: Some(attributes.to_pb()),
            }),
            NamespaceChange::Create { place, policy, attributes, exclusive, inherit } => {
                Change::Create(Create {
                    place: Some(place.to_pb()),
                    policy: Some(policy.to_pb()),
                    attributes: Some(attributes.to_pb()),
                    exclusive: *exclusive,
                    inherit: *inherit,
                })
            }
            NamespaceChange::Symlink { place, target, attributes } => Change::Symlink(Symlink {
                place: Some(place.to_pb()),
                target: target.clone(),
                attributes: Some(attributes.to_pb()),
            }),
            NamespaceChange::Link { links } => {
                let new_name = |(file, place): &(FileId, NameKey)| NewName {
                    file: file.get(),
                    place: Some(place.to_pb()),
                };
                Change::Link(Link { links: links.iter().map(new_name).collect() })
            }
            NamespaceChange::Unlink { place } => Change::Unlink(place.to_pb()),
            NamespaceChange::Rmdir { place } => Change::Rmdir(place.to_pb()),
            NamespaceChange::Rename { from, to, replace } => Change::Rename(Rename {
                from: Some(from.to_pb()),
                to: Some(to.to_pb()),
                replace: *replace,
            }),
            NamespaceChange::SetAttributes { place, attributes, len, file } => {
                Change::SetAttributes(SetAttributes {
                    place: Some(place.to_pb()),
                    attributes: Some(attributes.to_pb()),
                    len: *len,
                    file: file.map(FileId::get),
                })
            }
            NamespaceChange::SetDirPolicy { dir, policy } => Change::SetDirPolicy(SetDirPolicy {
                dir: u128_bytes(dir.get()),
                policy: policy.as_ref().map(Proto::to_pb),
            }),
            NamespaceChange::SetFilePolicy { place, file, policy } => {
                Change::SetFilePolicy(SetFilePolicy {
                    place: Some(place.to_pb()),
                    file: file.get(),
                    policy: Some(policy.to_pb()),
                })
            }
        };
        pb::NamespaceChange { change: Some(change) }
    }

    fn from_pb(pb: pb::NamespaceChange) -> Result<NamespaceChange, WireError> {
        use pb::namespace_change::Change;
        Ok(match pb.change.ok_or(WireError::Missing { field: "NamespaceChange.change" })? {
            Change::Mkdir(pb) => NamespaceChange::Mkdir {
                place: need(pb.place, "NamespaceChange.Mkdir.place")?,
                attributes: need(pb.attributes, "NamespaceChange.Mkdir.attributes")?,
            },
            Change::Create(pb) => NamespaceChange::Create {
                place: need(pb.place, "NamespaceChange.Create.place")?,
                policy: need(pb.policy, "NamespaceChange.Create.policy")?,
                attributes: need(pb.attributes, "NamespaceChange.Create.attributes")?,
                exclusive: pb.exclusive,
                inherit: pb.inherit,
            },
            Change::Symlink(pb) => NamespaceChange::Symlink {
                place: need(pb.place, "NamespaceChange.Symlink.place")?,
                target: target(pb.target)?,
                attributes: need(pb.attributes, "NamespaceChange.Symlink.attributes")?,
            },
            Change::Link(pb) => {
                let links = each(pb.links, LINKS_MAX, "NamespaceChange.Link.links", |pb| {
                    let place = need(pb.place, "NamespaceChange.NewName.place")?;
                    Ok((FileId::new(pb.file), place))
                })?;
                NamespaceChange::Link { links }
            }
            Change::Unlink(place) => NamespaceChange::Unlink { place: Proto::from_pb(place)? },
            Change::Rmdir(place) => NamespaceChange::Rmdir { place: Proto::from_pb(place)? },
            Change::Rename(pb) => NamespaceChange::Rename {
                from: need(pb.from, "NamespaceChange.Rename.from")?,
                to: need(pb.to, "NamespaceChange.Rename.to")?,
                replace: pb.replace,
            },
            Change::SetAttributes(pb) => NamespaceChange::SetAttributes {
                place: need(pb.place, "NamespaceChange.SetAttributes.place")?,
                attributes: need(pb.attributes, "NamespaceChange.SetAttributes.attributes")?,
                len: pb.len,
                file: pb.file.map(FileId::new),
            },
            Change::SetDirPolicy(pb) => NamespaceChange::SetDirPolicy {
                dir: DirId::new(u128_from(&pb.dir, "NamespaceChange.SetDirPolicy.dir")?),
                policy: pb.policy.map(Proto::from_pb).transpose()?,
            },
            Change::SetFilePolicy(pb) => NamespaceChange::SetFilePolicy {
                place: need(pb.place, "NamespaceChange.SetFilePolicy.place")?,
                file: FileId::new(pb.file),
                policy: need(pb.policy, "NamespaceChange.SetFilePolicy.policy")?,
            },
        })
    }
}

impl Proto for NamespaceRequest {
    type Pb = pb::NamespaceRequest;

    fn to_pb(&self) -> pb::NamespaceRequest {
        use pb::namespace_request::{Ask, Change, List};
        let ask = match self {
            NamespaceRequest::Lookup { place } => Ask::Lookup(place.to_pb()),
            NamespaceRequest::List { dir, after, limit } => {
                Ask::List(List { dir: u128_bytes(dir.get()), after: after.clone(), limit: *limit })
            }
            NamespaceRequest::StatFile { file } => Ask::StatFile(file.get()),
            NamespaceRequest::DirPolicy { dir } => Ask::DirPolicy(u128_bytes(dir.get())),
            NamespaceRequest::Change { op, change } => {
                Ask::Change(Change { op: Some(op.to_pb()), change: Some(change.to_pb()) })
            }
        };
        pb::NamespaceRequest { ask: Some(ask) }
    }

    fn from_pb(pb: pb::NamespaceRequest) -> Result<NamespaceRequest, WireError> {
        use pb::namespace_request::Ask;
        Ok(match pb.ask.ok_or(WireError::Missing { field: "NamespaceRequest.ask" })? {
            Ask::Lookup(place) => NamespaceRequest::Lookup { place: Proto::from_pb(place)? },
            Ask::List(pb) => {
                let after = |after| text(after, 0..=NAME_MAX, "NamespaceRequest.List.after");
                NamespaceRequest::List {
                    dir: DirId::new(u128_from(&pb.dir, "NamespaceRequest.List.dir")?),
                    after: pb.after.map(after).transpose()?,
                    limit: range_u32(pb.limit, 1..=LIST_MAX, "NamespaceRequest.List.limit")?,
                }
            }
            Ask::StatFile(file) => NamespaceRequest::StatFile { file: FileId::new(file) },
            Ask::DirPolicy(dir) => NamespaceRequest::DirPolicy {
                dir: DirId::new(u128_from(&dir, "NamespaceRequest.DirPolicy.dir")?),
            },
            Ask::Change(pb) => {
                let (op, change) = change(pb.op, pb.change, "NamespaceRequest.Change.change")?;
                NamespaceRequest::Change { op, change }
            }
        })
    }
}

impl Proto for NamespaceReply {
    type Pb = pb::NamespaceReply;

    fn to_pb(&self) -> pb::NamespaceReply {
        use pb::namespace_reply::{Answer, DirPolicy, Found, List};
        let answer = match self {
            NamespaceReply::Node { node, grant, dir_policy } => Answer::Node(Found {
                node: Some(node.to_pb()),
                grant: grant.to_vec(),
                dir_policy: dir_policy.as_ref().map(Proto::to_pb),
            }),
            NamespaceReply::List { entries, more } => {
                Answer::List(List { entries: all(entries), more: *more })
            }
            NamespaceReply::Done => Answer::Done(pb::Empty {}),
            NamespaceReply::DirPolicy { policy } => {
                Answer::DirPolicy(DirPolicy { policy: policy.as_ref().map(Proto::to_pb) })
            }
        };
        pb::NamespaceReply { answer: Some(answer) }
    }

    fn from_pb(pb: pb::NamespaceReply) -> Result<NamespaceReply, WireError> {
        use pb::namespace_reply::Answer;
        Ok(match pb.answer.ok_or(WireError::Missing { field: "NamespaceReply.answer" })? {
            Answer::Node(pb) => NamespaceReply::Node {
                node: need(pb.node, "NamespaceReply.Found.node")?,
                grant: secret(&pb.grant, "NamespaceReply.Found.grant")?,
                dir_policy: pb.dir_policy.map(Proto::from_pb).transpose()?,
            },
            Answer::List(pb) => {
                let field = "NamespaceReply.List.entries";
                let entries = each(pb.entries, LIST_MAX as usize, field, Proto::from_pb)?;
                NamespaceReply::List { entries, more: pb.more }
            }
            Answer::Done(_) => NamespaceReply::Done,
            Answer::DirPolicy(pb) => {
                NamespaceReply::DirPolicy { policy: pb.policy.map(Proto::from_pb).transpose()? }
            }
        })
    }
}
