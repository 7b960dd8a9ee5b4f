mod basics;
mod owners;
mod support;
