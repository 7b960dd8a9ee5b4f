//! Questions of the leader of one namespace partition to that of another.

use base::{DirId, FileId};
use wire::control::Node;

use super::outcome::{decode_outcome, encode_outcome, put_node, take_node};
use super::{IntentId, Namespace};
use master_consensus::bytes::{DecodeError, Reader, Writer};

/// A question. Its answer is linearizable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// Attributes of files.
    Nodes(Vec<FileId>),
    /// The parent of a directory.
    Parent(DirId),
    /// The outcome of an intent.
    IntentOutcome(IntentId),
}

/// The outcome of an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntentOutcome {
    /// Not decided yet.
    Open,
    /// It happened.
    Committed,
    /// It did not happen, or all who took part know.
    Over,
}

impl Question {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let to = &mut writer;
        match self {
            Question::Nodes(files) => {
                to.u8(1).count(files.len());
                files.iter().for_each(|&file| {
                    to.file(file);
                });
            }
            Question::Parent(dir) => {
                to.u8(2).dir(*dir);
            }
            Question::IntentOutcome(intent) => intent.encode(to.u8(3)),
        }
        writer.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Question, DecodeError> {
        let from = &mut Reader::new(bytes);
        Ok(match from.u8()? {
            1 => Question::Nodes(from.list(Reader::file)?),
            2 => Question::Parent(from.dir()?),
            3 => Question::IntentOutcome(IntentId::decode(from)?),
            _ => return Err(DecodeError),
        })
    }
}

/// The answer; empty when the question cannot be read.
pub(super) fn answer(state: &Namespace, question: &[u8]) -> Vec<u8> {
    let Ok(question) = Question::decode(question) else { return Vec::new() };
    let mut writer = Writer::new();
    let to = &mut writer;
    match question {
        Question::Nodes(files) => {
            to.count(files.len());
            for file in files {
                let node = state.stat(file).ok();
                to.bool(node.is_some());
                if let Some(node) = node {
                    put_node(to, &node);
                }
            }
        }
        Question::Parent(dir) => {
            let parent = state.parent(dir).ok();
            to.bool(parent.is_some()).dir(parent.unwrap_or_default());
        }
        Question::IntentOutcome(intent) => {
            let outcome = state.intent(intent).map(|intent| intent.outcome.as_ref());
            to.u8(match outcome {
                Some(None) => 0,
                Some(Some((true, _))) => 1,
                Some(Some((false, _))) | None => 2,
            });
        }
    }
    writer.finish()
}

/// The answer to [`Question::Nodes`].
pub fn decode_nodes(bytes: &[u8]) -> Result<Vec<Option<Node>>, DecodeError> {
    let mut from = Reader::new(bytes);
    let nodes = from.list(|from| Ok(if from.bool()? { Some(take_node(from)?) } else { None }))?;
    from.end()?;
    Ok(nodes)
}

/// The answer to [`Question::Parent`].
pub fn decode_parent(bytes: &[u8]) -> Result<Option<DirId>, DecodeError> {
    let mut from = Reader::new(bytes);
    let (present, dir) = (from.bool()?, from.dir()?);
    from.end()?;
    Ok(present.then_some(dir))
}

/// The answer to [`Question::IntentOutcome`].
pub fn decode_intent_outcome(bytes: &[u8]) -> Result<IntentOutcome, DecodeError> {
    match bytes {
        [0] => Ok(IntentOutcome::Open),
        [1] => Ok(IntentOutcome::Committed),
        [2] => Ok(IntentOutcome::Over),
        _ => Err(DecodeError),
    }
}

/// Fuzz target: any bytes are an answer of another partition, or an error; any question that
/// decodes is answered.
pub fn fuzz_question(bytes: &[u8]) {
    let _ = decode_nodes(bytes);
    let _ = decode_parent(bytes);
    let _ = decode_intent_outcome(bytes);
    if let Ok(outcome) = decode_outcome(bytes) {
        assert_eq!(decode_outcome(&encode_outcome(&outcome)), Ok(outcome));
    }
    for (partition, partitions) in [(0, 1), (1, 2)] {
        let _ = answer(&Namespace::new(partition, partitions), bytes);
    }
}
