"""The only interface between training and the programs that monitor or control it: writer, reader, control files, alarms."""
