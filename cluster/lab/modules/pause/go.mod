module fde-ray/lab/pause

go 1.24.0
