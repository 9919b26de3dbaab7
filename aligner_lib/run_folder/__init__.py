"""The one seam between training and all that watches or steers it: writer, reader, control files, alarms."""
