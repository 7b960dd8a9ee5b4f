mod basics;
mod facts;
mod kept;
mod owners;
mod support;
mod uploads;
